-- relay_status: how far a relay is with one feed, from one moment.
--
-- KEYS[1]  feed      stream: changes; each relay is a consumer group
-- KEYS[2]  feed:seq  counter of the feed
-- KEYS[3]  relay     hash: see relay_read.lua
-- KEYS[4]  dead      stream: see relay_fail.lua
-- ARGV[1]  the relay's name, its group's too
-- RETURNS  {changes ever, handled, trimmed, unfinished, dead, dead letters kept}; trimmed counts those that are gone
--          from the feed and were not read, also when no relay has noticed yet
-- COST     7 commands

local feed, relay = KEYS[1], ARGV[1]
local latest = tonumber(redis.call('GET', KEYS[2]) or '0')
local books = redis.call('HMGET', KEYS[3], relay .. ' read', relay .. ' handled', relay .. ' trimmed', relay .. ' dead')
for i = 1, 4 do
    books[i] = tonumber(books[i] or '0')
end
local after, pending, first = '-', 0, nil
if redis.call('EXISTS', feed) == 1 then
    local known = false
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', feed)) do
        if group[2] == relay then
            known = true
            for i = 1, #group, 2 do
                if group[i] == 'pending' then
                    pending = group[i + 1]
                elseif group[i] == 'last-delivered-id' then
                    after = '(' .. group[i + 1]
                end
            end
        end
    end
    if not known then
        books = {0, 0, 0, 0}
    end
    -- Ours have a number; something else's entry among them does not count.
    for _, entry in ipairs(redis.call('XRANGE', feed, after, '+', 'COUNT', 10)) do
        first = first or (entry[2][1] == 's' and tonumber(entry[2][2]) or nil)
    end
end
local gone = (first and first - 1 or latest) - books[1]
return {latest, books[2], books[3] + math.max(0, gone), pending, books[4], redis.call('XLEN', KEYS[4])}
