-- summary_claim: read a scope's shared summary, or take the right to write it, once. Summaries that differ in length or
-- by the caller's own name are variants: each has fields of its own, '<variant>:' and then
--   rev   revision of the turns that the row summarizes
--   row   the summary, opaque
--   by    token of who writes the next
--   ends  ms since the epoch at which that right ends
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   summary   hash
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   variant
-- ARGV[8]   revision wanted
-- ARGV[9]   token of the caller
-- ARGV[10]  how long the right lasts, ms
-- RETURNS   {state, receipt, row}: state 0, 1 applied before by this operation (receipt only), 3 closed. The receipt is
--           'there', 'taken' or 'granted'; the row is the last that was kept, '' for none. Only 'granted' writes.
-- COST      8 commands, 9 when the hash would go too early; 5 when nothing is written
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed

local refusal = malformed(8, 10, {10})
if refusal then return refusal end

local variant = ARGV[7] .. ':'
local found = redis.call('HMGET', KEYS[8], variant .. 'rev', variant .. 'row', variant .. 'ends')
local row = found[2] or ''
if found[1] == ARGV[8] then
    return {0, 'there', row}
end
if found[3] and tonumber(found[3]) > now then
    return {0, 'taken', row}
end
local lease = tonumber(ARGV[10])
redis.call('HSET', KEYS[8], variant .. 'by', ARGV[9], variant .. 'ends', string.format('%.0f', now + lease))
if redis.call('PTTL', KEYS[8]) < lease then
    redis.call('PEXPIRE', KEYS[8], ARGV[10])
end
return {0, once('granted'), row}
