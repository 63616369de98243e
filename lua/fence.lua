-- fence: refuses a relay whose lease went to another, before anything is written. Included, not a script of its own.
--
-- A relay that was paused, by a debugger, a full disk or a slow backend, may come back after its lease ran out and
-- another relay took the partition over. Its lease's value holds a token that was counted up since, so whatever it
-- still sends is refused here, in the same step as the write. A lease that still holds is extended.
--
-- KEYS[1]  lease     string: the value of the lease that holds now
-- ARGV[1]  the caller's lease
-- ARGV[2]  for how long to extend it, ms
-- LOCALS   now (ms since the epoch), number(n) -> n as commands take it
-- RETURNS  {-1} at once when the lease is not the caller's any more
-- COST     3 commands

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
    return {-1}
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])

local function number(value)
    return string.format('%.0f', value)
end
