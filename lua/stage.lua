-- stage: put records among those of a scope that wait to be published, all or none, once. No read shows them until
-- flush.lua publishes them.
--
-- A record waits as '<format> <layer> <id, encoded> <bytes of its body>', a line end, its body, and what a turn's node
-- has beyond its row. The format is 1. The body is a window row for the working layer, a node for any other.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   turns     list: the window and the evicted turns; what waits lives as long as they do
-- KEYS[9]   staged    list, oldest at the head: what waits
-- KEYS[10]  idem      sorted set: see idem.lua
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   ttl of both lists in ms; '' keeps them; '=' leaves the turns' as it is, and what waits gets the same
-- ARGV[8]   at most so many records may wait; those of another format are not counted, or nothing would free the place
-- ARGV[9]   at most so many bytes of them
-- ARGV[10]  idempotency digest; '' for none
-- ARGV[11]  how long to remember that, ms
-- ARGV[12+] records, oldest first
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation, 2 another operation had this
--           idempotency key, 3 closed. The receipt is how many wait afterwards. Or {7, records, bytes}: they would be
--           too many; so many wait already.
-- COST      10 commands, as many when the turns' ttl is asked for, 11 when there are none; what waits is read, to know
--           its bytes
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed
--@include window
--@include idem

local refusal = malformed(10, 12, {8, 9, 11}, {ARGV[7] ~= '=' and 7 or nil})
if refusal then return refusal end

local waiting, held, bytes, added = redis.call('LRANGE', KEYS[9], 0, -1), 0, 0, 0
if remembered(KEYS[10], ARGV[10]) then
    return {2, tostring(#waiting)}
end
for _, record in ipairs(waiting) do
    if string.find(record, '^1 %l+ %S+ %d+\n') then
        held, bytes = held + 1, bytes + #record
    end
end
for i = 12, #ARGV do
    added = added + #ARGV[i]
end
local count = #ARGV - 11
if held + count > tonumber(ARGV[8]) or bytes + added > tonumber(ARGV[9]) then
    return {7, held, bytes}
end
local ttl = ARGV[7]
if ttl == '=' then
    local left = redis.call('PTTL', KEYS[8])
    if left == -2 then
        -- No turns yet: what waits already says how long it lives.
        left = redis.call('PTTL', KEYS[9])
    end
    ttl = left > 0 and tostring(left) or ''
end
touch(lifetime(ttl, ARGV[10] ~= '' and ARGV[11] or '0'))
redis.call('RPUSH', KEYS[9], unpack(ARGV, 12))
expire(KEYS[9], ttl)
if ARGV[7] ~= '=' then
    expire(KEYS[8], ttl)
end
remember(KEYS[10], ARGV[10], ARGV[11])
return {0, once(tostring(#waiting + count))}
