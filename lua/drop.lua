-- drop: remove what a tenant's feed in this partition consists of, and that relays have read it, once.
--
-- KEYS[1..2]  see once.lua
-- KEYS[3..6]  the feed, its counter, the books of its relays, its dead letters
-- KEYS[7+]  feeds   sets: encoded tenants whose feeds a relay has read, one for each relay
-- ARGV[1..2]  see once.lua
-- ARGV[3]  the tenant, encoded
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation. The receipt is how many keys went.
-- COST      5 commands, 2 more for each relay, whatever they hold; memory is given back in the background
--@include once
--@include arguments

local refusal = malformed(6, 3, {})
if refusal then return refusal end

for i = 7, #KEYS do
    redis.call('SCARD', KEYS[i])
end
for i = 7, #KEYS do
    redis.call('SREM', KEYS[i], ARGV[3])
end
return {0, once(tostring(redis.call('UNLINK', KEYS[3], KEYS[4], KEYS[5], KEYS[6])))}
