-- import_rows: add turns to an archive that is being put together, once.
--
-- KEYS[1..7]  see once.lua, closed.lua and scope.lua
-- KEYS[8]   import    string: id of the import that may go on
-- KEYS[9]   rows      list, newest at the head
-- ARGV[1..6]  see once.lua, closed.lua and scope.lua
-- ARGV[7]   id of the import
-- ARGV[8+]  rows, oldest first
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed, 6 this import was given
--           up. The receipt is how many rows were added.
-- COST      8 commands
--@include once
--@include arguments
--@include closed

local refusal = malformed(9, 8, {})
if refusal then return refusal end

if redis.call('GET', KEYS[8]) ~= ARGV[7] then
    return {6, ''}
end
redis.call('LPUSH', KEYS[9], unpack(ARGV, 8))
-- A second longer than the import itself: what is committed is never half gone.
redis.call('PEXPIRE', KEYS[9], redis.call('PTTL', KEYS[8]) + 1000)
return {0, once(tostring(#ARGV - 7))}
