-- relay_ack: note that changes of one feed are done, and when the ones that failed are due again.
--
-- KEYS[1]  lease     see fence.lua
-- KEYS[2]  feed      stream: changes; each relay is a consumer group
-- KEYS[3]  relay     hash: see relay_read.lua
-- ARGV[1..2]  see fence.lua
-- ARGV[3]  the relay's name, its group's too
-- ARGV[4]  ms until the first of those that wait for another try is due; '' when none waits
-- ARGV[5+] ids of the changes that are done
-- RETURNS  {-1} fenced off; {0} the feed or its group is gone, nothing was written; {1, done, pending}:
--          how many were not noted before, and how many are still unfinished
-- COST     9 commands, 2 more for each 1,000 ids; 5 when the group is gone
--@include arguments

-- Before the fence, which extends the lease by what it is given.
local refusal = malformed(3, 4, {}, {4})
if refusal then return refusal end

--@include fence
--@include group

if not known then
    return {0}
end
redis.call('HLEN', KEYS[3]) -- before the first write: books that are no hash must stop it here
local feed, relay, done = KEYS[2], ARGV[3], 0
for first = 5, #ARGV, 1000 do
    local last = math.min(first + 999, #ARGV)
    done = done + redis.call('XACK', feed, relay, unpack(ARGV, first, last))
    local failures = {}
    for i = first, last do
        failures[#failures + 1] = relay .. ' f ' .. ARGV[i]
    end
    redis.call('HDEL', KEYS[3], unpack(failures))
end
local pending = redis.call('XPENDING', feed, relay)[1]
redis.call('HINCRBY', KEYS[3], relay .. ' handled', number(done))
if ARGV[4] ~= '' then
    redis.call('HSET', KEYS[3], relay .. ' waiting', number(pending), relay .. ' due', number(now + tonumber(ARGV[4])))
else
    redis.call('HDEL', KEYS[3], relay .. ' waiting', relay .. ' due')
end
return {1, done, pending}
