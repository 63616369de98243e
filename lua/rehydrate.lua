-- rehydrate: replay the tail of a transcript into a scope's window, once. The mirror is not written: the rows were
-- mirrored when they were first said.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   turns     list, newest at the head: the window, then the evicted turns
-- KEYS[9]   staged    list: what waits to be published, which lives as long as the turns
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   rows to keep in all: window, evicted turns, and one more that tells of older ones
-- ARGV[8]   ttl of the turns in ms; '' keeps them
-- ARGV[9]   '1' to replay into an empty window only, '0' to append to whatever is there
-- ARGV[10+] rows, oldest first
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 3 closed. The receipt is how many
--           rows were replayed, '0' when the window was not empty.
-- COST      10 commands
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed
--@include window

local refusal = malformed(9, 10, {7}, {8})
if refusal then return refusal end

local length = redis.call('LLEN', KEYS[8])
if ARGV[9] == '1' and length > 0 then
    return {0, once('0')}
end
local count = #ARGV - 9
touch(ARGV[8])
append(KEYS[8], ARGV, 10, count, length, tonumber(ARGV[7]), ARGV[8])
expire(KEYS[9], ARGV[8])
publish('rehydrate', 'n', count)
return {0, once(tostring(count))}
