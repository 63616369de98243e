-- scope: the tenant's index, told of every write to a scope. Included after once.lua; not a script of its own.
--
-- KEYS[4]  scopes    sorted set: path -> ms since the epoch at which the scope is gone; plus 1e14 when never
-- KEYS[5]  tenants   set: tenants with a scope in this partition
-- ARGV[3]  the scope's path, encoded
-- ARGV[4]  the tenant, encoded
-- LOCALS   path; lifetime(ttl, ttl); touch(ttl, held) -> an error where an index is of the wrong type, which has to stop
--          the script before its other writes; held: the index is known to live long enough, unless it is a new one
-- COST     touch: 2 commands, 1 when held, 8 more for a scope's first write

local path = ARGV[3]

-- The longer of two times to live, of which '' is for ever.
local function lifetime(one, other)
    return one ~= '' and other ~= '' and math.max(tonumber(one), tonumber(other)) or ''
end

local function touch(ttl, held)
    local added = redis.pcall('ZADD', KEYS[4], 'GT', now + (ttl == '' and 1e14 or ttl), path)
    if type(added) == 'table' or (held and added == 0) then
        return added ~= 0 and added or nil
    end
    local member = added == 1 and redis.pcall('SADD', KEYS[5], ARGV[4])
    if type(member) == 'table' then
        -- Of the wrong type: taken back, or the index would name a scope that is not there.
        redis.call('ZREM', KEYS[4], path)
        return member
    end

    -- An index lives as long as what it names, and up to twice as long: so it is seldom told. It has enough left for
    -- what is written in this generation of ids, where a time to live is longer than that.
    local function hold(key, ms, fresh)
        local left = redis.call('PTTL', key)
        if ms == '' and left >= 0 then
            redis.call('PERSIST', key)
        elseif ms ~= '' and (fresh or (left >= 0 and left < ms + math.min(ms, 2 * keep))) then
            redis.call('PEXPIRE', key, string.format('%.0f', 2 * ms))
        else
            return false
        end
        return true
    end

    local longer = hold(KEYS[4], ttl, added == 1 and redis.call('ZCARD', KEYS[4]) == 1)
    if added == 1 or longer then
        local first = (member or redis.call('SADD', KEYS[5], ARGV[4])) == 1
        -- For as long as the tenant's own index, which may have been told long after this one.
        local left = redis.call('PTTL', KEYS[4])
        hold(KEYS[5], left < 0 and '' or left, first and redis.call('SCARD', KEYS[5]) == 1)
    end
    if added == 1 then
        local gone = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 16)
        if #gone > 0 then
            redis.call('ZREM', KEYS[4], unpack(gone))
        end
    end
end
