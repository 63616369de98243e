-- summary_claim: read a scope's shared summary, or take the right to write it, once. Summaries that differ in length or
-- by the caller's own name are variants: each has fields of its own, '<variant>:' and then
--   rev   revision of the turns that the row summarizes
--   row   the summary, opaque
--   by    token of who writes the next
--   ends  ms since the epoch at which that right ends
-- The hash never outlives the turns: what is forgotten must not live on in its summary.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   turns     list: the window and the evicted turns
-- KEYS[9]   summary   hash
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   variant
-- ARGV[8]   revision wanted
-- ARGV[9]   token of the caller
-- ARGV[10]  how long the right lasts, ms
-- ARGV[11]  how long a summary is kept after it was written or found, ms
-- ARGV[12]  a row that the caller found and cannot read: it counts as none; '' for none
-- RETURNS   {state, receipt, row}: state 0, 1 applied before by this operation (receipt only), 3 closed. The receipt is
--           'there', 'taken', 'granted' or, where the scope has no turns, 'gone'; the row is the last that was kept, ''
--           for none. Only 'granted' writes.
-- COST      8 commands when it is granted, 9 when the hash would go too early; 6 when the summary is there, 7 when that
--           prolongs its life; 5 when it is taken; 5 when the turns are gone
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed

local refusal = malformed(9, 12, {10, 11})
if refusal then return refusal end

local turns = redis.call('PTTL', KEYS[8])
if turns == -2 then
    return {0, 'gone', ''}
end

local function within(ms)
    return turns >= 0 and math.min(ms, turns) or ms
end

-- Until then, and no longer than the turns, which a write with another ttl may have cut short.
local function hold(left, ms)
    if within(ms) ~= left then
        redis.call('PEXPIRE', KEYS[9], string.format('%.0f', within(ms)))
    end
end

local variant, lease, ttl = ARGV[7] .. ':', tonumber(ARGV[10]), tonumber(ARGV[11])
local found = redis.call('HMGET', KEYS[9], variant .. 'rev', variant .. 'row', variant .. 'ends')
local row = found[2] or ''
if found[1] == ARGV[8] and row ~= '' and row ~= ARGV[12] then
    -- Prolonged when it is half over, so that a read seldom writes.
    local left = redis.call('PTTL', KEYS[9])
    hold(left, 2 * left < within(ttl) and ttl or left)
    return {0, 'there', row}
end
if found[3] and tonumber(found[3]) > now then
    return {0, 'taken', row}
end
redis.call('HSET', KEYS[9], variant .. 'by', ARGV[9], variant .. 'ends', string.format('%.0f', now + lease))
local left = redis.call('PTTL', KEYS[9])
hold(left, math.max(left, lease))
return {0, once('granted', true), row}
