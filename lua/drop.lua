-- drop: remove what a tenant's feed in this partition consists of, once.
--
-- KEYS[1..2]  see once.lua
-- KEYS[3+]  the feed and the keys beside it
-- ARGV[1..2]  see once.lua
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation. The receipt is how many keys went.
-- COST      5 commands, whatever they hold; memory is given back in the background
--@include once

return {0, once(tostring(redis.call('UNLINK', unpack(KEYS, 3))))}
