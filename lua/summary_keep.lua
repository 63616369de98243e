-- summary_keep: keep the summary that a claim gave the right to write, once. The right is gone when another took it
-- after it ended, and when the scope was cleared or purged meanwhile.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   summary   hash: see summary_claim.lua
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   variant
-- ARGV[8]   revision of the turns that the row summarizes
-- ARGV[9]   token of the caller
-- ARGV[10]  row
-- ARGV[11]  for how many ms it is kept
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed. The receipt is 'kept', or
--           'late' when the right was gone.
-- COST      11 commands; 6 when it came late
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed

local refusal = malformed(8, 11, {11})
if refusal then return refusal end

local variant = ARGV[7] .. ':'
local kept = redis.call('HGET', KEYS[8], variant .. 'by') == ARGV[9]
if kept then
    -- A purge of the tenant finds the scope by its index, also when its turns are gone before this is.
    touch(ARGV[11])
    redis.call('HDEL', KEYS[8], variant .. 'by', variant .. 'ends')
    redis.call('HSET', KEYS[8], variant .. 'rev', ARGV[8], variant .. 'row', ARGV[10])
    redis.call('PEXPIRE', KEYS[8], ARGV[11])
end
return {0, once(kept and 'kept' or 'late')}
