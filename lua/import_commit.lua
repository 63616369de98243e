-- import_commit: put an archive that was put together in the place of an empty scope, whole, once.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   import    string: id of the import that may go on
-- KEYS[9+]  what the scope may hold: turns, staged, the streams, their edits; then, in the same order and without
--           staged, where the archive was put together
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   id of the import
-- ARGV[8]   number of layers
-- ARGV[9]   rows in all
-- ARGV[10]  nodes in all
-- ARGV[11]  ttl of the turns in ms; '' keeps them
-- ARGV[12]  ttl of the nodes in ms; '' keeps them
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed, 5 the scope is not empty,
--           6 this import was given up. The receipt is '<rows> <nodes>'.
-- COST      44 commands whatever the archive holds, up to 5 more for the index, 2 more for each key that it fills
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed
--@include vacant
--@include window

local refusal = malformed(11 + 4 * tonumber(ARGV[8]), 12, {8, 9, 10}, {11, 12})
if refusal then return refusal end

local layers = tonumber(ARGV[8])
if redis.call('GET', KEYS[8]) ~= ARGV[7] then
    return {6, ''}
end
if not vacant() then
    return {5, ''}
end
local own, beside = 11, 11 + 2 * layers
local rows, nodes = redis.call('LLEN', KEYS[beside]), 0
for i = 1, layers do
    nodes = nodes + redis.call('XLEN', KEYS[beside + i])
end
if rows ~= tonumber(ARGV[9]) or nodes ~= tonumber(ARGV[10]) then
    return {6, ''}
end

if rows + nodes > 0 then
    touch(lifetime(rows > 0 and ARGV[11] or '0', nodes > 0 and ARGV[12] or '0'))
end

local function take(from, to, ttl)
    redis.call('UNLINK', to)
    if redis.call('EXISTS', from) == 1 then
        redis.call('RENAME', from, to)
        expire(to, ttl)
    end
end

take(KEYS[beside], KEYS[9], ARGV[11])
for i = 1, 2 * layers do
    take(KEYS[beside + i], KEYS[own + i - 1], ARGV[12])
end
redis.call('UNLINK', KEYS[8])
publish('import', 'n', rows)
return {0, once(rows .. ' ' .. nodes)}
