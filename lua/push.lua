-- push: append turns to a scope's window and mirror them, all or nothing, once.
--
-- KEYS[1..7]  see once.lua, closed.lua, scope.lua and feed.lua
-- KEYS[8]   turns     list, newest at the head: the window, then the evicted turns
-- KEYS[9]   graph     stream: the mirror of the working layer
-- KEYS[10]  edits     hash: see edits.lua
-- KEYS[11]  idem      sorted set: see idem.lua
-- KEYS[12]  staged    list: what waits to be published, which lives as long as the turns
-- ARGV[1..6]  see once.lua, closed.lua, scope.lua and feed.lua
-- ARGV[7]   window, in turns
-- ARGV[8]   rows to keep in all: window, evicted turns, and one more that tells of older ones
-- ARGV[9]   ttl of the turns in ms; '' keeps them
-- ARGV[10]  mirror: '' no mirror, 'all' unbounded, else how many nodes to keep
-- ARGV[11]  ttl of the mirror in ms; '' keeps it
-- ARGV[12]  idempotency digest; '' for none
-- ARGV[13]  how long to remember that, ms
-- ARGV[14]  number of rows
-- ARGV[15+] rows, oldest first; then, when any row has some, as many extras of the nodes, '' for none
-- RETURNS   {state, receipt, rows, nodes}: state 0 applied, 1 applied before by this operation (receipt only),
--           2 another operation had this idempotency key (receipt only), 3 closed. The receipt is
--           '<window length> <evicted> <id of the first node, or ->'; the others' ids count up from it.
-- COST      7 commands for one turn without a mirror, 9 with, full or not, 1 more for each ttl; a batch adds one XADD a
--           turn; 3 to 6 more where the last write was not such a push (ADR-008)
--@include once
--@include arguments
--@include closed
--@include scope
--@include feed
--@include edits
--@include mirror
--@include window
--@include idem

-- The last write was a push as this one, and left nothing that has to be looked at again: see ADR-008.
local digest, settings = ARGV[12], #ARGV > 14 and table.concat(ARGV, ' ', 7, 11)
local told = digest == '' and open and asked <= kept and settings == known[5] and #KEYS > 11 and whole(ARGV[14])
if not told then
    local refusal = malformed(12, 15, {7, 8, 13, 14}, {9, 11, ARGV[10] ~= 'all' and 10 or nil})
    if refusal then return refusal end
end

local window, ttl, mirror, count = tonumber(ARGV[7]), ARGV[9], ARGV[10], tonumber(ARGV[14])
if count < 1 or #ARGV < 14 + count then
    return redis.error_reply('ERR there are fewer rows than argument 14 says')
end
local nodes, edited = 0, 0
if mirror ~= '' then
    nodes = redis.call('XLEN', KEYS[9])
    edited = told and 0 or redis.call('HLEN', KEYS[10])
end
if digest ~= '' and remembered(KEYS[11], digest) then
    return {2, math.min(redis.call('LLEN', KEYS[8]), window) .. ' 0 -'}
end

-- The list first, since all of it can be taken back. The scope is in the index as long as anything of it, its
-- idempotency keys too: a purge finds it there.
local length = prepend(KEYS[8], ARGV, 15, count)
local lasts = lifetime(lifetime(ttl, mirror ~= '' and ARGV[11] or '0'), digest ~= '' and ARGV[13] or '0')
local refusal, ids = touch(lasts, told), {}
if mirror ~= '' and mirror ~= '0' and not refusal then
    ids = append(KEYS[9], count, mirror ~= 'all' and edited == 0 and mirror or '')
    refusal = ids.err and ids
end
if refusal then
    redis.call('LPOP', KEYS[8], count)
    return refusal
end
local rows, waits = shorten(KEYS[8], length, count, tonumber(ARGV[8])), 0
if ttl ~= '' or not told then
    expire(KEYS[8], ttl)
end
if mirror ~= '' then
    nodes = nodes + #ids
    if mirror ~= 'all' then
        nodes = edited == 0 and ids[1] and math.min(nodes, tonumber(mirror))
            or trim(KEYS[9], KEYS[10], edited, tonumber(mirror), nodes)
    end
    if ARGV[11] ~= '' or not told then
        expire(KEYS[9], ARGV[11])
    end
    if edited > 0 then
        expire(KEYS[10], ARGV[11])
    end
end
if not told then
    waits = expire(KEYS[12], ttl)
end
remember(KEYS[11], digest, ARGV[13])
for i = 1, ARGV[5] ~= '' and count or 0 do
    publish('push', 'l', 'working', 'i', ids[i] or '-', 'r', ARGV[14 + i], 'x', ARGV[14 + i + count] or '')
end

local before = math.min(length - count, window)
local evicted = math.max(0, before + count - window)
local steady = digest == '' and edited == 0 and waits == 0 and (lasts == '' or lasts >= 2 * keep)
return {0, once(before + count - evicted .. ' ' .. evicted .. ' ' .. (ids[1] or '-'), steady and settings), rows, nodes}
