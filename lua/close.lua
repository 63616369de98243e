-- close: refuse writes to a scope, to all below it, or to a whole tenant in this partition for a while, once.
--
-- KEYS[1..2]  see once.lua
-- KEYS[3]   closed    hash: see closed.lua
-- ARGV[1..2]  see once.lua
-- ARGV[3]   what: 'tenant', 'scope:<path>' or 'tree:<path>'
-- ARGV[4]   for how many ms; when it is closed for longer already, that stays
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation. The receipt is 'closed'.
-- COST      10 commands
--@include once
--@include arguments
--@include tombstone

local refusal = malformed(3, 4, {4})
if refusal then return refusal end

redis.call('HLEN', KEYS[3])
close(KEYS[3], ARGV[3], ARGV[4])
return {0, once('closed')}
