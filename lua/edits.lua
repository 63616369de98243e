-- edits: what was changed of nodes after they were written, dropped with them. Included, not a script of its own.
--
-- A stream entry cannot change, so changes stand beside the stream, in a hash. A node's field is its stream id and
-- holds the names that were changed, separated by spaces; the value of each stands in a field '<id> <name>'.
--
-- LOCALS   drop_edits(key, ids), trim(graph, edits, edited, cap, length) -> new length
-- COST     trim: 1 command when something goes; with edits 1 more, and a HGET and a HDEL for each node that goes

local function drop_edits(key, ids)
    for _, id in ipairs(ids) do
        local names = redis.call('HGET', key, id)
        if names then
            local fields = {id, id .. ' at'}
            for name in string.gmatch(names, '%S+') do
                fields[#fields + 1] = id .. ' ' .. name
            end
            redis.call('HDEL', key, unpack(fields))
        end
    end
end

-- A lowered cap may cut a million nodes at once: then the edits are gone through, not the nodes.
local function older_edits(graph, key)
    local first = redis.call('XRANGE', graph, '-', '+', 'COUNT', 1)
    if #first == 0 then
        redis.call('UNLINK', key)
        return
    end
    local ms, seq = string.match(first[1][1], '^(%d+)-(%d+)$')
    local ids = {}
    for _, field in ipairs(redis.call('HKEYS', key)) do
        local at, number = string.match(field, '^(%d+)-(%d+)$')
        if at and (tonumber(at) < tonumber(ms) or (at == ms and tonumber(number) < tonumber(seq))) then
            ids[#ids + 1] = field
        end
    end
    drop_edits(key, ids)
end

local function trim(graph, edits, edited, cap, length)
    local excess = length - cap
    if excess <= 0 then
        return length
    end
    if edited > 0 and excess <= 64 then
        local ids = {}
        for _, entry in ipairs(redis.call('XRANGE', graph, '-', '+', 'COUNT', excess)) do
            ids[#ids + 1] = entry[1]
        end
        drop_edits(edits, ids)
    end
    redis.call('XTRIM', graph, 'MAXLEN', '=', cap)
    if edited > 0 and excess > 64 then
        older_edits(graph, edits)
    end
    return cap
end
