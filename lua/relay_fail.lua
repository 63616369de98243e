-- relay_fail: note that a change could not be copied; after the last try, move it to the dead letters.
--
-- The failures are given, not counted up here: a call whose reply was lost may be repeated.
--
-- KEYS[1]  lease     see fence.lua
-- KEYS[2]  feed      stream: changes; each relay is a consumer group
-- KEYS[3]  relay     hash: see relay_read.lua
-- KEYS[4]  dead      stream: 'relay', 'error' (its type's name), 'failures', 'entry' (its id), then the entry's fields
-- ARGV[1..2]  see fence.lua
-- ARGV[3]  the relay's name, its group's too
-- ARGV[4]  the change's id
-- ARGV[5]  how often it has failed, this time included
-- ARGV[6]  ms until the next try; '' when this was the last
-- ARGV[7]  the name of the error's type
-- ARGV[8]  how many dead letters to keep
-- RETURNS  {-1} fenced off; {0} the feed or its group is gone, nothing was written; {1, moved}: 1 when it went to the
--          dead letters, else 0
-- COST     6 commands; 14 for a dead letter; 5 when the group is gone
--@include arguments

-- Before the fence, which extends the lease by what it is given.
local refusal = malformed(4, 8, {5, 8}, {6})
if refusal then return refusal end

--@include fence
--@include group

if not known then
    return {0}
end
local feed, relay, id = KEYS[2], ARGV[3], ARGV[4]
if ARGV[6] ~= '' then
    redis.call('HSET', KEYS[3], relay .. ' f ' .. id, ARGV[5] .. ' ' .. number(now + tonumber(ARGV[6])))
    return {1, 0}
end
redis.call('HLEN', KEYS[3])
redis.call('XLEN', KEYS[4])
local moved = 0
-- A call that is repeated finds it finished, and moves it no second time.
if #redis.call('XPENDING', feed, relay, id, id, 1) == 1 then
    local entry = redis.call('XRANGE', feed, id, id)[1]
    if entry then
        -- Acknowledged only once the letter is there: whatever is refused here leaves the change unfinished, not lost.
        -- The largest entry is an update of 1,000 names, some 2,010 names and values; unpack takes nearly 8,000.
        redis.call('XADD', KEYS[4], 'MAXLEN', '=', ARGV[8], '*', 'relay', relay, 'error', ARGV[7], 'failures', ARGV[5],
            'entry', id, unpack(entry[2]))
        moved = 1
    end
    redis.call('XACK', feed, relay, id)
    if entry then
        redis.call('HINCRBY', KEYS[3], relay .. ' handled', 1)
        redis.call('HINCRBY', KEYS[3], relay .. ' dead', 1)
    else
        redis.call('HINCRBY', KEYS[3], relay .. ' trimmed', 1)
    end
end
redis.call('HDEL', KEYS[3], relay .. ' f ' .. id)
return {1, moved}
