-- scope: the tenant's index, told of every write to a scope. Included after once.lua; not a script of its own.
--
-- KEYS[4]  scopes    sorted set: path -> ms since the epoch at which the scope is gone; plus 1e14 when never
-- KEYS[5]  tenants   set: tenants with a scope in this partition
-- ARGV[3]  the scope's path, encoded
-- ARGV[4]  the tenant, encoded
-- LOCALS   path; lifetime(ttl, ttl); touch(ttl), which comes before the script's other writes, since an index of the
--          wrong type must stop it there
-- COST     touch: 2 commands, 8 more for a scope's first write

local path = ARGV[3]

-- The longer of two times to live, of which '' is for ever.
local function lifetime(one, other)
    return one ~= '' and other ~= '' and math.max(tonumber(one), tonumber(other)) or ''
end

-- An index lives as long as what it names, and up to twice as long: so it is seldom told. What is left is enough for
-- all that is written while this generation of ids lives, where a scope lives for longer than that.
local function hold(key, ttl, fresh)
    local left = redis.call('PTTL', key)
    if ttl == '' and left >= 0 then
        redis.call('PERSIST', key)
    elseif ttl ~= '' and (fresh or (left >= 0 and left < ttl + math.min(ttl, 2 * keep))) then
        redis.call('PEXPIRE', key, string.format('%.0f', 2 * ttl))
    else
        return false
    end
    return true
end

local function touch(ttl)
    local ends = now + (ttl == '' and 1e14 or ttl)
    local added = redis.call('ZADD', KEYS[4], 'GT', string.format('%.0f', ends), path) == 1
    local member = added and redis.pcall('SADD', KEYS[5], ARGV[4])
    if type(member) == 'table' then
        -- Of the wrong type: taken back, or the index would name a scope that is not there.
        redis.call('ZREM', KEYS[4], path)
        error(member.err)
    end
    local held = hold(KEYS[4], ttl, added and redis.call('ZCARD', KEYS[4]) == 1)
    if added or held then
        local first = (member or redis.call('SADD', KEYS[5], ARGV[4])) == 1
        -- For as long as the tenant's own index, which may have been told long after this one.
        local left = redis.call('PTTL', KEYS[4])
        hold(KEYS[5], left < 0 and '' or left, first and redis.call('SCARD', KEYS[5]) == 1)
    end
    if added then
        local gone = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', string.format('%.0f', now), 'LIMIT', 0, 16)
        if #gone > 0 then
            redis.call('ZREM', KEYS[4], unpack(gone))
        end
    end
end
