-- clear: empty a scope's window, its evicted turns and, when it has one, the working layer's mirror, once.
-- Operation ids and idempotency keys stay: a job redelivered after a clear must not bring its turn back.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   turns     list: the window and the evicted turns
-- KEYS[9]   graph     stream: the mirror of the working layer
-- KEYS[10]  edits     hash: see edits.lua
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   '1' to empty the mirror too, '0' to leave it
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed. The receipt is
--           '<rows removed> <nodes removed>'.
-- COST      7 commands, 11 with a mirror; the mirror is emptied in time linear in its length
--@include once
--@include closed
--@include scope
--@include feed

local rows, nodes = redis.call('LLEN', KEYS[8]), 0
if ARGV[7] == '1' then
    nodes = redis.call('XLEN', KEYS[9])
    redis.call('HLEN', KEYS[10])
end
if rows > 0 then
    redis.call('UNLINK', KEYS[8])
end
if nodes > 0 then
    -- Trimmed, not deleted: the stream must remember its last id, or a push within the same millisecond would
    -- give a new node the id of one that was just cleared.
    redis.call('XTRIM', KEYS[9], 'MAXLEN', '=', 0)
    redis.call('UNLINK', KEYS[10])
end
publish('clear', 'm', ARGV[7])
return {0, once(rows .. ' ' .. nodes)}
