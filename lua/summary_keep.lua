-- summary_keep: keep the summary that a claim gave the right to write, once. The right is gone when another took it
-- after it ended, and when the scope was cleared or purged meanwhile, or its turns expired.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   turns     list: the window and the evicted turns, which the summary does not outlive
-- KEYS[9]   summary   hash: see summary_claim.lua
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   variant
-- ARGV[8]   revision of the turns that the row summarizes
-- ARGV[9]   token of the caller
-- ARGV[10]  row
-- ARGV[11]  for how many ms it is kept
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed. The receipt is 'kept', or
--           'late' when the right was gone.
-- COST      9 commands; 6 when it came late
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed

local refusal = malformed(9, 11, {11})
if refusal then return refusal end

local variant = ARGV[7] .. ':'
local turns = redis.call('PTTL', KEYS[8])
local kept = turns ~= -2 and redis.call('HGET', KEYS[9], variant .. 'by') == ARGV[9]
if kept then
    -- The tenant's index knows the scope for as long as it has turns, so it need not be told.
    redis.call('HDEL', KEYS[9], variant .. 'by', variant .. 'ends')
    redis.call('HSET', KEYS[9], variant .. 'rev', ARGV[8], variant .. 'row', ARGV[10])
    local ms = turns >= 0 and math.min(turns, tonumber(ARGV[11])) or tonumber(ARGV[11])
    redis.call('PEXPIRE', KEYS[9], string.format('%.0f', ms))
end
return {0, once(kept and 'kept' or 'late', true)}
