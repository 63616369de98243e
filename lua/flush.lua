-- flush: publish what waits in a scope, all at once, once: working records as turns of the window and its mirror, those
-- of other layers as nodes of their layer. What this version cannot read goes on waiting.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   turns     list, newest at the head: the window, then the evicted turns
-- KEYS[9]   staged    list, oldest at the head: what waits, see stage.lua
-- KEYS[10+] the stream of each layer, then the edits of each, see edits.lua
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   window, in turns
-- ARGV[8]   rows to keep in all, see push.lua
-- ARGV[9]   ttl of the lists in ms; '' keeps them
-- ARGV[10]  mirror of the working layer: '' no mirror, 'all' unbounded, else how many nodes to keep
-- ARGV[11]  ttl of the streams in ms; '' keeps them
-- ARGV[12+] the layers' names, in the order of their streams
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed. The receipt is
--           '<window length> <evicted> <records left waiting>', then ' <id> <layer> <stream id, or ->' for each record
--           that was published, in the order in which they were staged.
-- COST      6 commands when nothing waits; else 11, 4 for each layer and 1 for each record, 1 more with a full mirror;
--           with a feed 2 more for each record, and 4
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed
--@include edits
--@include window

local refusal = malformed(9 + 2 * (#ARGV - 11), 11, {7, 8}, {9, 11, ARGV[10] ~= 'all' and 10 or nil})
if refusal then return refusal end

local window, mirror, layers = tonumber(ARGV[7]), ARGV[10], #ARGV - 11
local places, records, left, rows = {}, {}, {}, {}
for i = 1, layers do
    places[ARGV[11 + i]] = 9 + i
end
for _, item in ipairs(redis.call('LRANGE', KEYS[9], 0, -1)) do
    local line = string.find(item, '\n', 1, true) or 1
    local layer, id, size = string.match(string.sub(item, 1, line - 1), '^1 (%l+) (%S+) (%d+)$')
    local ends = line + tonumber(size or '0')
    if places[layer or ''] and ends <= #item then
        local body, extra = string.sub(item, line + 1, ends), string.sub(item, ends + 1)
        records[#records + 1] = {id = id, layer = layer, place = places[layer], body = body, extra = extra}
        rows[#rows + 1] = layer == 'working' and body or nil
    else
        left[#left + 1] = item
    end
end

local length, nodes, edited = redis.call('LLEN', KEYS[8]), {}, {}
for _, record in ipairs(records) do
    local place = record.place
    if not nodes[place] then
        nodes[place] = redis.call('XLEN', KEYS[place])
        edited[place] = redis.call('HLEN', KEYS[place + layers])
    end
end
if #records > 0 then
    local kept = '0'
    for place in pairs(nodes) do kept = (place ~= places['working'] or mirror ~= '') and ARGV[11] or kept end
    touch(lifetime(ARGV[9], kept))
end
local evicted = math.max(0, math.min(length, window) + #rows - window)
local receipt = {math.min(length + #rows, window) .. ' ' .. evicted .. ' ' .. #left}
-- The streams first: a stream may refuse an entry, a list never does.
for _, record in ipairs(records) do
    local stream, body, extra, id = KEYS[record.place], record.body, record.extra, '-'
    if record.layer ~= 'working' then
        id = redis.call('XADD', stream, '*', 'n', body)
        publish('node', 'l', record.layer, 'i', id, 'n', body)
    else
        if mirror ~= '' and mirror ~= '0' then
            id = extra == '' and redis.call('XADD', stream, '*', 'r', body)
                or redis.call('XADD', stream, '*', 'r', body, 'x', extra)
            nodes[record.place] = nodes[record.place] + 1
        end
        publish('push', 'l', 'working', 'i', id, 'r', body, 'x', extra)
    end
    receipt[#receipt + 1] = record.id .. ' ' .. record.layer .. ' ' .. id
end
for place, held in pairs(nodes) do
    if place == places['working'] and mirror ~= '' and mirror ~= 'all' then
        trim(KEYS[place], KEYS[place + layers], edited[place], tonumber(mirror), held)
    end
    if place ~= places['working'] or mirror ~= '' then
        expire(KEYS[place], ARGV[11])
        expire(KEYS[place + layers], ARGV[11])
    end
end
if #records > 0 then
    if #rows > 0 then
        append(KEYS[8], rows, 1, #rows, length, tonumber(ARGV[8]), ARGV[9])
    else
        expire(KEYS[8], ARGV[9])
    end
    redis.call('UNLINK', KEYS[9])
    for chunk = 1, #left, 4000 do
        redis.call('RPUSH', KEYS[9], unpack(left, chunk, math.min(chunk + 3999, #left)))
        expire(KEYS[9], ARGV[9])
    end
    publish('flush', 'n', #records)
end
return {0, once(table.concat(receipt, ' '), #records == 0)}
