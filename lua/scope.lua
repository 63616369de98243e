-- scope: what every write to a scope has in common. Included after once.lua; not a script of its own.
--
-- A write that was applied enters the scope into the tenant's index under the time at which it will be gone, and, where
-- the deployment has a feed, is published there.
--
-- KEYS[3]  closed    hash: 'tenant', 'scope:<path>' or 'tree:<path>' -> ms since the epoch until which it is closed
-- KEYS[4]  scopes    sorted set: path -> ms since the epoch at which the scope is gone; plus 1e14 when never
-- KEYS[5]  tenants   set: tenants with a scope in this partition
-- KEYS[6]  feed      stream: changes, each 's' sequence number, 'k' kind, 'p' path, and what the kind needs
-- KEYS[7]  feed:seq  counter of the feed
-- ARGV[3]  the scope's path, encoded
-- ARGV[4]  the tenant, encoded
-- ARGV[5]  feed: how many entries to keep; '' for no feed
-- ARGV[6]  how many to keep at most while a group has not acknowledged them
-- LOCALS   lifetime(ttl, ttl), touch(ttl), publish(kind, field, value, ...)
-- COST     touch: 2 commands, 7 more for a scope's first write; publish: nothing without a feed, 3 commands with one,
--          2 to 4 more when it is full

local path = ARGV[3]

-- The longer of two times to live, of which '' is for ever.
local function lifetime(one, other)
    return one ~= '' and other ~= '' and math.max(tonumber(one), tonumber(other)) or ''
end

-- An index lives as long as what it names, and up to twice as long: so it is seldom told.
local function hold(key, ttl, fresh)
    local left = redis.call('PTTL', key)
    if ttl == '' and left >= 0 then
        redis.call('PERSIST', key)
    elseif ttl ~= '' and (fresh or (left >= 0 and left < tonumber(ttl))) then
        redis.call('PEXPIRE', key, string.format('%.0f', 2 * ttl))
    else
        return false
    end
    return true
end

local function touch(ttl)
    local ends = now + (ttl == '' and 1e14 or tonumber(ttl))
    local added = redis.call('ZADD', KEYS[4], 'GT', string.format('%.0f', ends), path) == 1
    local held = hold(KEYS[4], ttl, added and redis.call('ZCARD', KEYS[4]) == 1)
    if added or held then
        local first = redis.call('SADD', KEYS[5], ARGV[4]) == 1
        hold(KEYS[5], ttl, first and redis.call('SCARD', KEYS[5]) == 1)
    end
    if added then
        local gone = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now), 'LIMIT', 0, 16)
        if #gone > 0 then
            redis.call('ZREM', KEYS[4], unpack(gone))
        end
    end
end

-- The oldest id that some group has yet to acknowledge; nil without groups.
local function unread()
    local oldest
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[6])) do
        local fields = {}
        for i = 1, #group, 2 do
            fields[group[i]] = group[i + 1]
        end
        local id = fields['last-delivered-id']
        if fields['pending'] > 0 then
            id = redis.call('XPENDING', KEYS[6], fields['name'])[2]
        end
        local ms, seq = string.match(id, '^(%d+)-(%d+)$')
        if not oldest or tonumber(ms) < oldest[1] or (tonumber(ms) == oldest[1] and tonumber(seq) < oldest[2]) then
            oldest = {tonumber(ms), tonumber(seq), id}
        end
    end
    return oldest and oldest[3]
end

local function publish(kind, ...)
    if ARGV[5] == '' then
        return
    end
    redis.call('XADD', KEYS[6], '*', 's', redis.call('INCR', KEYS[7]), 'k', kind, 'p', path, ...)
    local excess = redis.call('XLEN', KEYS[6]) - tonumber(ARGV[5])
    if excess <= 0 then
        return
    end
    local waiting = unread()
    if not waiting then
        redis.call('XTRIM', KEYS[6], 'MAXLEN', '=', ARGV[5])
        return
    end
    -- What a group has not acknowledged stays, up to the hard cap; beyond it the numbers tell the reader of the gap.
    local oldest = redis.call('XRANGE', KEYS[6], '-', waiting, 'COUNT', math.min(excess, 64))
    for i = 1, #oldest do
        if oldest[i][1] ~= waiting then
            redis.call('XDEL', KEYS[6], oldest[i][1])
        end
    end
    redis.call('XTRIM', KEYS[6], 'MAXLEN', '=', ARGV[6])
end
