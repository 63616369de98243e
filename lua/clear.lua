-- clear: empty a scope's window, its evicted turns and, when it has one, the working layer's mirror, once.
-- Operation ids and idempotency keys stay: a job redelivered after a clear must not bring its turn back.
--
-- KEYS[1]  ops       see once.lua
-- KEYS[2]  ops:old   see once.lua
-- KEYS[3]  turns     list: the window and the evicted turns
-- KEYS[4]  graph     stream: the mirror of the working layer
-- ARGV[1]  operation id
-- ARGV[2]  how long to remember it, ms
-- ARGV[3]  '1' to empty the mirror too, '0' to leave it
-- RETURNS  {state, receipt}: state 0 applied, 1 applied before by this operation. The receipt is
--          '<rows removed> <nodes removed>'.
-- COST     6 commands, 8 with a mirror; the mirror is emptied in time linear in its length
--@include once

local rows = redis.call('LLEN', KEYS[3])
local nodes = 0
if ARGV[3] == '1' then
    nodes = redis.call('XLEN', KEYS[4])
end
if rows > 0 then
    redis.call('UNLINK', KEYS[3])
end
if nodes > 0 then
    -- Trimmed, not deleted: the stream must remember its last id, or a push within the same millisecond would
    -- give a new node the id of one that was just cleared.
    redis.call('XTRIM', KEYS[4], 'MAXLEN', '=', 0)
end
return {0, once(rows .. ' ' .. nodes)}
