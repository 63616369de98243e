-- mirror: appending rows to a stream, all or none. Included, not a script of its own.
--
-- LOCALS   append(graph, count, cap) -> the ids of the rows ARGV[15] and the following, or an error: a stream that has
--          reached its last possible id takes no more. cap is a number of nodes in text, '' for any
-- COST     1 command for each row

local function append(graph, count, cap)
    local ids, time, sequence = {}, nil, nil
    for i = 1, count do
        local id, extra = '*', ARGV[14 + i + count] or ''
        -- Trimmed with the last one: until then all can be taken back.
        local most = i == count and cap ~= '' and cap or '9007199254740991'
        if time then
            id = time .. '-' .. string.format('%.0f', sequence + i)
        end
        if extra ~= '' then
            id = redis.pcall('XADD', graph, 'MAXLEN', '=', most, id, 'r', ARGV[14 + i], 'x', extra)
        else
            id = redis.pcall('XADD', graph, 'MAXLEN', '=', most, id, 'r', ARGV[14 + i])
        end
        if type(id) == 'table' then
            for _, added in ipairs(ids) do
                redis.call('XDEL', graph, added)
            end
            return id
        end
        ids[i] = id
        if count > 1 and not time then
            time, sequence = string.match(id, '^(%d+)-(%d+)$')
            sequence = tonumber(sequence) - 1
        end
    end
    return ids
end
