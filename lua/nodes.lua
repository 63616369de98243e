-- nodes: a page of a layer's nodes with what was changed of them, from one moment.
--
-- KEYS[1]  graph     stream: the nodes of the layer
-- KEYS[2]  edits     hash: see edits.lua
-- ARGV[1]  first id, as XRANGE takes it: '-', an id, or '(' and an id
-- ARGV[2]  last id, likewise
-- ARGV[3]  at most so many
-- ARGV[4]  '1' for newest first, '0' for oldest first
-- RETURNS  {entries, edits}: entries as of XRANGE; edits one list for each entry, {name, value, ...}, empty for most
-- COST     2 commands; with edits 1 more for each entry, and 1 more for each edited one

local entries
if ARGV[4] == '1' then
    entries = redis.call('XREVRANGE', KEYS[1], ARGV[2], ARGV[1], 'COUNT', ARGV[3])
else
    entries = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[2], 'COUNT', ARGV[3])
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
return {entries, edits}
