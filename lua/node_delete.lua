-- node_delete: remove a node and what was changed of it, once.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   graph     stream: the nodes of the layer
-- KEYS[9]   edits     hash: see edits.lua
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   the layer's name
-- ARGV[8]   the node's stream id
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed. The receipt is how many
--           nodes were removed, '0' or '1'.
-- COST      7 commands, 1 more when the node was changed
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed
--@include edits

local refusal = malformed(9, 8, {})
if refusal then return refusal end

redis.call('HLEN', KEYS[9])
local removed = redis.call('XDEL', KEYS[8], ARGV[8])
if removed == 1 then
    drop_edits(KEYS[9], {ARGV[8]})
    publish('delete', 'l', ARGV[7], 'i', ARGV[8])
end
return {0, once(tostring(removed), true)}
