-- window: appending rows to a capped list. Included, not a script of its own.
--
-- LOCALS   expire(key, ttl) -> 1 where the key now has a ttl, or had one;
--          append(key, rows, first, count, length, keep, ttl) -> rows the list holds afterwards; what is appended are
--          rows[first] and the following, oldest first
-- COST     3 commands, 1 less while the list is not full, 1 more for each 4,000 rows

local function expire(key, ttl)
    if ttl ~= '' then
        return redis.call('PEXPIRE', key, ttl)
    end
    return redis.call('PERSIST', key)
end

local function append(key, rows, first, count, length, keep, ttl)
    local last = first + count - 1
    for chunk = first, last, 4000 do
        redis.call('LPUSH', key, unpack(rows, chunk, math.min(chunk + 3999, last)))
    end
    -- At most 16 rows more than were added are cut, so a worker with a smaller bound neither empties the list at
    -- once nor blocks the server; the surplus goes within the next writes.
    local held = math.min(length + count, math.max(keep, length - 16))
    if held < length + count then
        redis.call('LTRIM', key, 0, held - 1)
    end
    expire(key, ttl)
    return held
end
