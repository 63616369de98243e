-- idem: the names under which callers stored something, so that a job that is delivered again stores it once. Included
-- after once.lua; not a script of its own.
--
-- LOCALS   remembered(key, digest) -> whether; remember(key, digest, ms): key is a sorted set, idempotency digest -> ms
--          since the epoch at which it is forgotten
-- COST     nothing for the digest ''; else remembered: 1 command, 3 when it is; remember: 4, 1 more when it forgets
--          others

local function linger(key)
    redis.call('PEXPIREAT', key, redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2])
end

local function remembered(key, digest)
    local ends = digest ~= '' and redis.call('ZSCORE', key, digest)
    if not ends or tonumber(ends) <= now then
        return false
    end
    -- A write, for a WAIT that follows: see once.lua.
    linger(key)
    return true
end

local function remember(key, digest, ms)
    if digest == '' then
        return
    end
    redis.call('ZADD', key, string.format('%.0f', now + tonumber(ms)), digest)
    local gone = redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%.0f', now), 'LIMIT', 0, 16)
    if #gone > 0 then
        redis.call('ZREM', key, unpack(gone))
    end
    linger(key)
end
