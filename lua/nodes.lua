-- nodes: a page of a layer's nodes with what was changed of them, from one moment.
--
-- KEYS[1]  graph     stream: the nodes of the layer
-- KEYS[2]  edits     hash: see edits.lua
-- ARGV[1]  first id, as XRANGE takes it: '-', an id, or '(' and an id
-- ARGV[2]  last id, likewise
-- ARGV[3]  at most so many; the page also ends after a megabyte
-- ARGV[4]  '1' for newest first, '0' for oldest first
-- RETURNS  {entries, edits, more}: entries as of XRANGE; edits one list for each entry, {name, value, ...}, empty for
--          most; more is 1 when there may be another page
-- COST     2 commands, 1 more for each 20 entries; with edits 1 more for each entry, and 1 more for each edited one

local first, last, wanted = ARGV[1], ARGV[2], tonumber(ARGV[3])
local entries, bytes, more = {}, 0, true
while more and #entries < wanted and bytes < 1048576 do
    local page
    local most = math.min(20, wanted - #entries)
    if ARGV[4] == '1' then
        page = redis.call('XREVRANGE', KEYS[1], last, first, 'COUNT', most)
    else
        page = redis.call('XRANGE', KEYS[1], first, last, 'COUNT', most)
    end
    for _, entry in ipairs(page) do
        entries[#entries + 1] = entry
        for _, field in ipairs(entry[2]) do
            bytes = bytes + #field
        end
    end
    more = #page == most
    if more and ARGV[4] == '1' then
        last = '(' .. page[most][1]
    elseif more then
        first = '(' .. page[most][1]
    end
end
local edits = {}
if redis.call('HLEN', KEYS[2]) > 0 then
    for i, entry in ipairs(entries) do
        local edited = {}
        local names = redis.call('HGET', KEYS[2], entry[1])
        if names then
            local fields = {entry[1] .. ' at'}
            edited[1] = 'at'
            for name in string.gmatch(names, '%S+') do
                fields[#fields + 1] = entry[1] .. ' ' .. name
                edited[2 * #fields - 1] = name
            end
            for j, value in ipairs(redis.call('HMGET', KEYS[2], unpack(fields))) do
                edited[2 * j] = value
            end
        end
        edits[i] = edited
    end
end
return {entries, edits, more and 1 or 0}
