-- group: whether a feed has the relay's group. Included after fence.lua; not a script of its own.
--
-- It has none before the relay first reads it, and none after the purge of its tenant: whatever the relay still has
-- to note of the feed is void then, and noting it would bring keys back that were erased.
--
-- KEYS[2]  feed      stream: changes; each relay is a consumer group
-- ARGV[3]  the relay's name, its group's too
-- LOCALS   known     whether the feed and the group are there
-- COST     2 commands, 1 without a feed

local known = false
if redis.call('EXISTS', KEYS[2]) == 1 then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[2])) do
        known = known or group[2] == ARGV[3]
    end
end
