-- clear: empty a scope's window, its evicted turns, the working records that wait to be published and, when it has one,
-- the working layer's mirror, once. Records of other layers go on waiting.
-- Operation ids and idempotency keys stay: a job redelivered after a clear must not bring its turn back.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   turns     list: the window and the evicted turns
-- KEYS[9]   graph     stream: the mirror of the working layer
-- KEYS[10]  edits     hash: see edits.lua
-- KEYS[11]  staged    list: see stage.lua
-- KEYS[12]  summary   hash: see summary_claim.lua
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   '1' to empty the mirror too, '0' to leave it
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed. The receipt is
--           '<rows removed> <nodes removed> <staged records removed>'.
-- COST      8 commands, 12 with a mirror; 1 more for each staged working record, 1 more where a summary is kept; the
--           mirror is emptied in time linear in its length
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed

local refusal = malformed(12, 7, {})
if refusal then return refusal end

local rows, nodes, withdrawn = redis.call('LLEN', KEYS[8]), 0, 0
local waiting = redis.call('LRANGE', KEYS[11], 0, -1)
local summaries = redis.call('HLEN', KEYS[12])
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
if summaries > 0 then
    -- With it goes the right to write the next: a summary of what was cleared is refused.
    redis.call('UNLINK', KEYS[12])
end
for _, record in ipairs(waiting) do
    if string.find(record, '^%d+ working ') then
        withdrawn = withdrawn + redis.call('LREM', KEYS[11], 1, record)
    end
end
publish('clear', 'm', ARGV[7])
return {0, once(rows .. ' ' .. nodes .. ' ' .. withdrawn)}
