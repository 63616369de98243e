-- window: adding rows to a capped list. Included, not a script of its own.
--
-- LOCALS   expire(key, ttl) -> 1 when there is such a key and it has a ttl, or had one that was taken away;
--          prepend(key, rows, first, count) -> rows the list holds; what is added are rows[first] and the following,
--          oldest first; shorten(key, length, count, keep) -> rows the list then holds: count of its length are new
-- COST     1 command each; none to shorten a list that is not full; prepend takes 1 more for each 4,000 rows

local function expire(key, ttl)
    if ttl ~= '' then
        return redis.call('PEXPIRE', key, ttl)
    end
    return redis.call('PERSIST', key)
end

local function prepend(key, rows, first, count)
    local last, length = first + count - 1, 0
    for chunk = first, last, 4000 do
        length = redis.call('LPUSH', key, unpack(rows, chunk, math.min(chunk + 3999, last)))
    end
    return length
end

local function shorten(key, length, count, keep)
    -- At most 16 rows more than were added are cut, so a worker with a smaller bound neither empties the list at
    -- once nor blocks the server; the surplus goes within the next writes.
    local held = math.min(length, math.max(keep, length - count - 16))
    if held < length then
        redis.call('LTRIM', key, 0, held - 1)
    end
    return held
end
