-- node_add: append one node to a layer's stream, once.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   graph     stream: the nodes of the layer
-- KEYS[9]   edits     hash: see edits.lua
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   ttl of the stream in ms; '' keeps it
-- ARGV[8]   the layer's name
-- ARGV[9]   the node
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed. The receipt is the
--           stream id.
-- COST      10 commands
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed
--@include window

local refusal = malformed(9, 9, {}, {7})
if refusal then return refusal end

redis.call('XLEN', KEYS[8])
local edited = redis.call('HLEN', KEYS[9])
touch(ARGV[7])
local id = redis.call('XADD', KEYS[8], '*', 'n', ARGV[9])
expire(KEYS[8], ARGV[7])
if edited > 0 then
    expire(KEYS[9], ARGV[7])
end
publish('node', 'l', ARGV[8], 'i', id, 'n', ARGV[9])
return {0, once(id, ARGV[8] ~= 'working')}
