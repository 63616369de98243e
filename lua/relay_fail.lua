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
-- RETURNS  {-1} fenced off; {1, moved}: 1 when it went to the dead letters, else 0
-- COST     4 commands; 11 for a dead letter
--@include fence

local feed, relay, id = KEYS[2], ARGV[3], ARGV[4]
if ARGV[6] ~= '' then
    redis.call('HSET', KEYS[3], relay .. ' f ' .. id, ARGV[5] .. ' ' .. number(now + tonumber(ARGV[6])))
    return {1, 0}
end
redis.call('XLEN', KEYS[4])
local entry = redis.call('XRANGE', feed, id, id)[1]
local moved = 0
redis.call('HDEL', KEYS[3], relay .. ' f ' .. id)
if redis.call('XACK', feed, relay, id) == 1 then
    if entry then
        moved = 1
        redis.call('XADD', KEYS[4], 'MAXLEN', '=', ARGV[8], '*', 'relay', relay, 'error', ARGV[7], 'failures', ARGV[5],
            'entry', id, unpack(entry[2]))
        redis.call('HINCRBY', KEYS[3], relay .. ' handled', 1)
        redis.call('HINCRBY', KEYS[3], relay .. ' dead', 1)
    else
        redis.call('HINCRBY', KEYS[3], relay .. ' trimmed', 1)
    end
end
return {1, moved}
