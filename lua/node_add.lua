-- node_add: append one node to a layer's stream, once.
--
-- KEYS[1]  ops       see once.lua
-- KEYS[2]  ops:old   see once.lua
-- KEYS[3]  graph     stream: the nodes of the layer
-- ARGV[1]  operation id
-- ARGV[2]  how long to remember it, ms
-- ARGV[3]  ttl of the stream in ms; '' keeps it
-- ARGV[4]  the node
-- RETURNS  {state, receipt}: state 0 applied, 1 applied before by this operation. The receipt is the stream id.
-- COST     6 commands
--@include once

redis.call('XLEN', KEYS[3])
local id = redis.call('XADD', KEYS[3], '*', 'n', ARGV[4])
if ARGV[3] ~= '' then
    redis.call('PEXPIRE', KEYS[3], ARGV[3])
else
    redis.call('PERSIST', KEYS[3])
end
return {0, once(id)}
