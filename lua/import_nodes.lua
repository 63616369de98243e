-- import_nodes: add nodes of one layer to an archive that is being put together, under the ids they had, once.
--
-- KEYS[1..7]  see once.lua, closed.lua and scope.lua
-- KEYS[8]   import    string: id of the import that may go on
-- KEYS[9]   nodes     stream
-- KEYS[10]  edits     hash: see edits.lua
-- ARGV[1..6]  see once.lua, closed.lua and scope.lua
-- ARGV[7]   id of the import
-- ARGV[8+]  for each node, oldest first: its stream id; how many values follow, and the fields and values of its entry;
--           how many values follow, and the names and values of what was changed of it
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed, 6 this import was given
--           up. The receipt is how many nodes were added.
-- COST      8 commands, 1 more for each node, 1 more for each change, and 1 for each node that has some
--@include once
--@include arguments
--@include closed

local refusal = malformed(10, 7, {})
if refusal then return refusal end

if redis.call('GET', KEYS[8]) ~= ARGV[7] then
    return {6, ''}
end
local count, i = 0, 8
while i <= #ARGV do
    if not whole(ARGV[i + 1]) or not whole(ARGV[i + 2 + tonumber(ARGV[i + 1])]) then
        return redis.error_reply('ERR a node does not say how many values follow')
    end
    local id, last = ARGV[i], i + 1 + tonumber(ARGV[i + 1])
    redis.call('XADD', KEYS[9], id, unpack(ARGV, i + 2, last))
    local first, ends = last + 2, last + 1 + tonumber(ARGV[last + 1])
    if ends >= first then
        local names = {}
        for j = first, ends, 2 do
            names[#names + 1] = ARGV[j] ~= 'at' and ARGV[j] or nil
            redis.call('HSET', KEYS[10], id .. ' ' .. ARGV[j], ARGV[j + 1])
        end
        redis.call('HSET', KEYS[10], id, table.concat(names, ' '))
    end
    count, i = count + 1, ends + 1
end
local left = redis.call('PTTL', KEYS[8]) + 1000
redis.call('PEXPIRE', KEYS[9], left)
redis.call('PEXPIRE', KEYS[10], left)
return {0, once(tostring(count))}
