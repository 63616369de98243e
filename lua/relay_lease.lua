-- relay_lease: take a partition for one relay, or keep it. The token in a lease's value only ever counts up, so an
-- old lease can be told from a new one whatever the clocks say.
--
-- KEYS[1]  lease     string: '<token>:<holder>', expires when its holder is silent
-- KEYS[2]  token     string: how many leases were taken so far
-- ARGV[1]  the holder's own random name
-- ARGV[2]  for how long, ms
-- RETURNS  the lease's value, new or extended; '' when another holder has it
-- COST     2 commands to keep it or to find it taken, 3 to take it

if not string.find(ARGV[2] or '', '^[1-9]%d*$') or #ARGV[2] > 16 or not KEYS[2] then
    return redis.error_reply('ERR a lease needs a time, and the key of its counter')
end
local held = redis.call('GET', KEYS[1])
if held then
    -- Also after a reply that was lost: whoever asks again under the same name gets what it was given.
    if string.match(held, '^%d+:(.*)$') ~= ARGV[1] then
        return ''
    end
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return held
end
local lease = string.format('%.0f', redis.call('INCR', KEYS[2])) .. ':' .. ARGV[1]
redis.call('SET', KEYS[1], lease, 'PX', ARGV[2], 'NX')
return lease
