-- relay_release: give a partition back before its lease runs out, so that another relay need not wait.
--
-- Only the lease that the caller was given goes: after a pause it may be another's by now. Nothing else is told of it:
-- whoever looks next finds the partition free, and what was read and not noted is claimed by whoever takes it.
--
-- It may be repeated without harm: a second call finds the lease gone, or another's, and leaves it.
--
-- KEYS[1]  lease     string: the value of the lease that holds now
-- ARGV[1]  the caller's lease
-- ARGV[2]  not used; the lease is about to go
-- RETURNS  {-1} when the lease was not the caller's any more, {1} when it was given back
-- COST     4 commands
--@include fence

redis.call('DEL', KEYS[1])
return {1}
