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
-- COST      7 commands for one turn after another without a mirror, 9 with, 1 more for each ttl (see again.lua); for
--           the first, several, or with an idempotency key 11, with a mirror 15, when that is full 16, beside what the
--           key (idem.lua) and a scope's first write (scope.lua) add; a batch adds one XADD a turn
--@include once
--@include closed
--@include feed
--@include again
--@include arguments
--@include scope
--@include edits
--@include window
--@include idem

local refusal = malformed(12, 15, {7, 8, 13, 14}, {9, 11, ARGV[10] ~= 'all' and 10 or nil})
if refusal then return refusal end

local window, mirror, digest, count = tonumber(ARGV[7]), ARGV[10], ARGV[12], tonumber(ARGV[14])
if count < 1 or #ARGV < 14 + count then
    return redis.error_reply('ERR there are fewer rows than argument 14 says')
end
local length = redis.call('LLEN', KEYS[8])
local nodes, edited = 0, 0
if mirror ~= '' then
    nodes = redis.call('XLEN', KEYS[9])
    edited = redis.call('HLEN', KEYS[10])
end
if remembered(KEYS[11], digest) then
    return {2, math.min(length, window) .. ' 0 -'}
end

-- The scope is in the index as long as anything of it, its idempotency keys too: a purge finds it there.
local lasts = lifetime(lifetime(ARGV[9], mirror ~= '' and ARGV[11] or '0'), digest ~= '' and ARGV[13] or '0')
touch(lasts)
-- The mirror first: a stream may refuse an entry, a list never does.
local node = '-'
local time, sequence
for i = 15, 14 + count do
    local id, extra = '-', ARGV[i + count] or ''
    if mirror ~= '' and mirror ~= '0' then
        id = '*'
        if time then
            sequence = sequence + 1
            id = time .. '-' .. string.format('%.0f', sequence)
        end
        if extra ~= '' then
            id = redis.call('XADD', KEYS[9], id, 'r', ARGV[i], 'x', extra)
        else
            id = redis.call('XADD', KEYS[9], id, 'r', ARGV[i])
        end
        if not time then
            node = id
            time, sequence = string.match(id, '^(%d+)-(%d+)$')
            sequence = tonumber(sequence)
        end
    end
    publish('push', 'l', 'working', 'i', id, 'r', ARGV[i], 'x', extra)
end
if mirror ~= '' then
    nodes = node == '-' and nodes or nodes + count
    if mirror ~= 'all' then
        nodes = trim(KEYS[9], KEYS[10], edited, tonumber(mirror), nodes)
    end
    expire(KEYS[9], ARGV[11])
    if edited > 0 then
        expire(KEYS[10], ARGV[11])
    end
end

local rows = append(KEYS[8], ARGV, 15, count, length, tonumber(ARGV[8]), ARGV[9])
local waits = expire(KEYS[12], ARGV[9])
remember(KEYS[11], digest, ARGV[13])

local evicted = math.max(0, math.min(length, window) + count - window)
-- Nothing waits, nothing was edited, and the index lives on: another such push need not look (ADR-008).
local told = digest == '' and mirror ~= '0' and edited == 0 and waits == 0 and (lasts == '' or lasts >= 2 * keep)
    and table.concat(ARGV, ' ', 7, 11)
return {0, once(math.min(length + count, window) .. ' ' .. evicted .. ' ' .. node, told), rows, nodes}
