-- purge: close a scope and erase everything it has, once. It does not ask whether the scope is closed: it closes it.
--
-- KEYS[1..7]  see once.lua, scope.lua and feed.lua
-- KEYS[8+]  every other key that the scope may have
-- ARGV[1..6]  see once.lua, scope.lua and feed.lua
-- ARGV[6]   '-' and no ARGV[5] when the feed goes as a whole: nothing is published, whatever the feed
-- ARGV[7]   for how many ms the scope stays closed; '' when it is closed from above
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation. The receipt is '<keys removed>
--           <id of its entry in the feed, or ->'.
-- COST      10 commands whatever the scope holds, 5 more to close it, 2 more with a feed; memory is given back in the
--           background
--@include once
--@include arguments
--@include scope
--@include feed
--@include tombstone

local refusal = malformed(8, 7, {}, {7})
if refusal then return refusal end

local scopes = redis.call('ZCARD', KEYS[4])
redis.call('SCARD', KEYS[5])
if ARGV[7] ~= '' then
    close(KEYS[3], 'scope:' .. path, ARGV[7])
end
local removed = redis.call('UNLINK', unpack(KEYS, 8))
if scopes == redis.call('ZREM', KEYS[4], path) then
    redis.call('SREM', KEYS[5], ARGV[4])
end
-- Who reads the feed must hear of it, also when the one who purges was not told of the feed. Trimming it is left to
-- those who know its cap.
if ARGV[5] == '' and ARGV[6] ~= '-' and redis.call('EXISTS', KEYS[6]) == 1 then
    ARGV[5], ARGV[6] = '9007199254740991', '9007199254740991'
end
publish('purge')
local newest = redis.call('XREVRANGE', KEYS[6], '+', '-', 'COUNT', 1)
return {0, once(removed .. ' ' .. (newest[1] and newest[1][1] or '-'))}
