-- node_update: change properties or attributes of a node that is there, once. Names that were not changed stay.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   graph     stream: the nodes of the layer
-- KEYS[9]   edits     hash: see edits.lua
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   the layer's name
-- ARGV[8]   the node's stream id
-- ARGV[9+]  name, value, name, value, ...; no name holds a space
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed. The receipt is '1', '0'
--           when there is no such node, '-1' when more than 1,000 names of it would be changed: nothing was written.
-- COST      9 commands, 1 more when the stream has a time to live
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed
--@include window

local refusal = malformed(9, 10, {})
if refusal then return refusal end

redis.call('HLEN', KEYS[9])
local id = ARGV[8]
if #redis.call('XRANGE', KEYS[8], id, id) == 0 then
    return {0, once('0', true)}
end
local fields, names, changed = {}, {}, {}
for i = 9, #ARGV, 2 do
    changed[ARGV[i]] = true
end
for name in string.gmatch(redis.call('HGET', KEYS[9], id) or '', '%S+') do
    names[#names + 1] = not changed[name] and name or nil
end
-- What was changed last stands last: two names may stand for the same, when a worker has not got the newest key yet.
for i = 9, #ARGV, 2 do
    names[#names + 1] = ARGV[i]
    fields[#fields + 1] = id .. ' ' .. ARGV[i]
    fields[#fields + 1] = ARGV[i + 1]
end
if #names > 1000 then
    return {0, once('-1', true)}
end
redis.call('HSET', KEYS[9], id, table.concat(names, ' '), id .. ' at', string.format('%.0f', now), unpack(fields))
local ttl = redis.call('PTTL', KEYS[8])
if ttl > 0 then
    redis.call('PEXPIRE', KEYS[9], ttl)
end
publish('update', 'l', ARGV[7], 'i', id, unpack(ARGV, 9))
return {0, once('1', ARGV[7] ~= 'working')}
