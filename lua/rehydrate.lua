-- rehydrate: replay the tail of a transcript into a scope's window, once. The mirror is not written: the rows were
-- mirrored when they were first said.
--
-- KEYS[1]  ops       see once.lua
-- KEYS[2]  ops:old   see once.lua
-- KEYS[3]  turns     list, newest at the head: the window, then the evicted turns
-- ARGV[1]  operation id
-- ARGV[2]  how long to remember it, ms
-- ARGV[3]  rows to keep in all: window, evicted turns, and one more that tells of older ones
-- ARGV[4]  ttl of the turns in ms; '' keeps them
-- ARGV[5]  '1' to replay into an empty window only, '0' to append to whatever is there
-- ARGV[6+] rows, oldest first
-- RETURNS  {state, receipt}: state 0 applied, 1 applied before by this operation. The receipt is how many rows were
--          replayed, '0' when the window was not empty.
-- COST     7 commands
--@include once

local length = redis.call('LLEN', KEYS[3])
if ARGV[5] == '1' and length > 0 then
    return {0, once('0')}
end
local count = #ARGV - 5
for first = 6, #ARGV, 4000 do
    redis.call('LPUSH', KEYS[3], unpack(ARGV, first, math.min(first + 3999, #ARGV)))
end
local rows = math.min(length + count, math.max(tonumber(ARGV[3]), length - 16))
if rows < length + count then
    redis.call('LTRIM', KEYS[3], 0, rows - 1)
end
if ARGV[4] ~= '' then
    redis.call('PEXPIRE', KEYS[3], ARGV[4])
else
    redis.call('PERSIST', KEYS[3])
end
return {0, once(tostring(count))}
