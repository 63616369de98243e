-- import_begin: open a place beside an empty scope in which an archive is put together, once. Readers see nothing of
-- it until import_commit.lua; left alone, it expires. An import that began before and has not ended is given up.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   import    string: id of the import that may go on
-- KEYS[9+]  what the scope may hold, see vacant.lua; then the keys beside it, in which the archive is put together
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   id of the import
-- ARGV[8]   number of layers
-- ARGV[9]   for how many ms the place is kept
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed, 5 the scope is not empty
-- COST      15 commands, 7 more when the index does not know the scope
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed
--@include vacant

local refusal = malformed(11 + tonumber(ARGV[8]), 9, {8, 9})
if refusal then return refusal end

if not vacant() then
    return {5, ''}
end
redis.call('SET', KEYS[8], ARGV[7], 'PX', ARGV[9])
redis.call('UNLINK', unpack(KEYS, 11 + tonumber(ARGV[8])))
-- In the index, so that a purge of the tenant finds it.
touch(ARGV[9])
return {0, once('begun')}
