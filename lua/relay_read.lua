-- relay_read: the next changes of one feed for a relay: those that some relay read and did not finish, then new ones.
--
-- Unfinished changes are claimed from whichever consumer had them: the lease says that it is dead or fenced off. As
-- they always come first, a call whose reply was lost may be repeated. The books count by sequence number, so what
-- was trimmed or erased unread is known: read = handled + trimmed + pending.
--
-- KEYS[1]  lease     see fence.lua
-- KEYS[2]  feed      stream: changes, see feed.lua; each relay is a consumer group
-- KEYS[3]  feed:seq  counter of the feed
-- KEYS[4]  relay     hash: '<relay> read', 'handled', 'trimmed', 'dead', 'waiting', 'due' -> number, and
--                    '<relay> f <id>' -> '<failures> <ms since the epoch of the next try>'
-- KEYS[5]  feeds     set: encoded tenants whose feeds this relay has read, also when they have no scope any more
-- KEYS[6]  relays    set: the names of the relays that have read a feed of this partition
-- ARGV[1..2]  see fence.lua
-- ARGV[3]  the relay's name, its group's too
-- ARGV[4]  consumer
-- ARGV[5]  at most so many
-- ARGV[6]  the tenant, encoded
-- RETURNS  {-1} fenced off; {0} there is no such feed, or no more; {1, unfinished, new, failures}: entries as
--          of XRANGE; failures a list {id, failures, ms until the next try, ...}
-- COST     11 commands, 4 more the first time; 1 more when something was trimmed; 7 when there is no such feed
--@include arguments

-- Before the fence, which extends the lease by what it is given.
local refusal = malformed(6, 6, {5})
if refusal then return refusal end

--@include fence
--@include group
--@include claim

local feed, relay, limit = KEYS[2], ARGV[3], tonumber(ARGV[5])
local latest = tonumber(redis.call('GET', KEYS[3]) or '')
if not latest then
    -- Whoever writes a change counts it first, so this feed was erased, or never was: nothing is to begin it anew.
    redis.call('SREM', KEYS[5], ARGV[6])
    return {0}
end
local books, failures = {}, {}
local fields = redis.call('HGETALL', KEYS[4])
for i = 1, #fields, 2 do
    local name = string.match(fields[i], '^(%S+)')
    if name == relay then
        books[string.sub(fields[i], #relay + 2)] = fields[i + 1]
    end
end
if not known or tonumber(books['read'] or '0') > latest then
    -- A feed without the group is new, or was erased and begins anew: so do the books.
    for name in pairs(books) do
        redis.call('HDEL', KEYS[4], relay .. ' ' .. name)
    end
    books = {}
end
if not known then
    -- What is no set must show itself before the group is there.
    redis.call('SCARD', KEYS[5])
    redis.call('SCARD', KEYS[6])
    redis.call('XGROUP', 'CREATE', feed, relay, '0', 'MKSTREAM')
    redis.call('SADD', KEYS[5], ARGV[6])
    redis.call('SADD', KEYS[6], relay)
end

local unfinished, there, trimmed, all = claim()
local new, read, wanted = {}, tonumber(books['read'] or '0'), limit - #unfinished
if all and wanted > 0 then
    local reply = redis.call('XREADGROUP', 'GROUP', relay, ARGV[4], 'COUNT', wanted, 'STREAMS', feed, '>')
    -- { { feed, entries } }; fakeredis answers { feed, entries }.
    local entries = reply and (reply[1][2] or reply[2]) or {}
    for _, entry in ipairs(entries) do
        local sequence = entry[2][1] == 's' and tonumber(entry[2][2])
        if sequence then
            trimmed = trimmed + sequence - read - 1
            read = sequence
            new[#new + 1] = entry
        else
            redis.call('XACK', feed, relay, entry[1]) -- none of ours: left in place
        end
    end
    if #entries < wanted then
        trimmed = trimmed + latest - read
        read = latest
    end
end
redis.call('HSET', KEYS[4], relay .. ' read', number(read))
if trimmed > 0 then
    redis.call('HINCRBY', KEYS[4], relay .. ' trimmed', number(trimmed))
end
for name, value in pairs(books) do
    local id = string.match(name, '^f (.*)$')
    if id and there[id] then
        local count, due = string.match(value, '^(%d+) (%d+)$')
        for _, part in ipairs({id, tonumber(count), math.max(0, tonumber(due) - now)}) do
            failures[#failures + 1] = part
        end
    elseif id and all then
        redis.call('HDEL', KEYS[4], relay .. ' ' .. name) -- trimmed or erased while it waited
    end
end
return {1, unfinished, new, failures}
