-- tombstone: closing a scope, a subtree or a tenant for a while. Included after once.lua; not a script of its own.
--
-- LOCALS   close(key, field, ms): key is the hash of closed.lua
-- COST     4 commands, 1 more when the key lives longer for it, 1 more when expired fields are found

local function close(key, field, ms)
    local ends = now + tonumber(ms)
    local earlier = redis.call('HGET', key, field)
    -- What is no time, which only something else can have written, counts as one that is over.
    if (tonumber(earlier or '') or 0) < ends then
        redis.call('HSET', key, field, string.format('%.0f', ends))
    end
    local left = redis.call('PTTL', key)
    if left < 0 or now + left < ends then
        redis.call('PEXPIREAT', key, string.format('%.0f', ends))
    end
    -- A sample, not a walk: each closing adds one field and may remove 16, so expired ones stay few.
    local sample, gone = redis.call('HRANDFIELD', key, 16, 'WITHVALUES'), {}
    for i = 1, #sample, 2 do
        if (tonumber(sample[i + 1]) or 0) <= now then
            gone[#gone + 1] = sample[i]
        end
    end
    if #gone > 0 then
        redis.call('HDEL', key, unpack(gone))
    end
end
