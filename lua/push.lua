-- push: append turns to a scope's window and mirror them, all or nothing, once.
--
-- KEYS[1]   ops       see once.lua
-- KEYS[2]   ops:old   see once.lua
-- KEYS[3]   turns     list, newest at the head: the window, then the evicted turns
-- KEYS[4]   graph     stream: the mirror of the working layer
-- KEYS[5]   idem      sorted set: idempotency digest -> ms since the epoch at which it is forgotten
-- ARGV[1]   operation id
-- ARGV[2]   how long to remember it, ms
-- ARGV[3]   window, in turns
-- ARGV[4]   rows to keep in all: window, evicted turns, and one more that tells of older ones
-- ARGV[5]   ttl of the turns in ms; '' keeps them
-- ARGV[6]   mirror: '' no mirror, 'all' unbounded, else how many nodes to keep
-- ARGV[7]   ttl of the mirror in ms; '' keeps it
-- ARGV[8]   idempotency digest; '' for none
-- ARGV[9]   how long to remember that, ms
-- ARGV[10]  number of rows
-- ARGV[11+] rows, oldest first; then, when any row has some, as many extras of the nodes, '' for none
-- RETURNS   {state, receipt, rows, nodes}: state 0 applied, 1 applied before by this operation (receipt only),
--           2 another operation had this idempotency key (receipt only). The receipt is
--           '<window length> <evicted> <id of the first node, or ->'; the others' ids count up from it.
-- COST      8 commands for one turn without a mirror, 11 with; a batch adds one XADD a turn
--@include once

local window, keep = tonumber(ARGV[3]), tonumber(ARGV[4])
local length = redis.call('LLEN', KEYS[3])
local digest = ARGV[8]
local mirror = ARGV[6]
local nodes = 0
if mirror ~= '' then
    nodes = redis.call('XLEN', KEYS[4])
end
if digest ~= '' then
    local ends = redis.call('ZSCORE', KEYS[5], digest)
    if ends and tonumber(ends) > now then
        return {2, math.min(length, window) .. ' 0 -'}
    end
end

local count = tonumber(ARGV[10])
for first = 11, 10 + count, 4000 do
    redis.call('LPUSH', KEYS[3], unpack(ARGV, first, math.min(first + 3999, 10 + count)))
end
-- At most 16 rows more than were added are cut, so a worker with a smaller bound neither empties the list at once
-- nor blocks the server; the surplus goes within the next writes.
local rows = math.min(length + count, math.max(keep, length - 16))
if rows < length + count then
    redis.call('LTRIM', KEYS[3], 0, rows - 1)
end
if ARGV[5] ~= '' then
    redis.call('PEXPIRE', KEYS[3], ARGV[5])
else
    redis.call('PERSIST', KEYS[3])
end

local node = '-'
if mirror == '0' then
    redis.call('XTRIM', KEYS[4], 'MAXLEN', '=', 0)
    nodes = 0
elseif mirror ~= '' then
    local time, sequence
    for i = 11, 10 + count do
        local id = '*'
        if time then
            sequence = sequence + 1
            id = time .. '-' .. string.format('%.0f', sequence)
        end
        local extra = ARGV[i + count]
        if extra and extra ~= '' then
            id = redis.call('XADD', KEYS[4], id, 'r', ARGV[i], 'x', extra)
        else
            id = redis.call('XADD', KEYS[4], id, 'r', ARGV[i])
        end
        if not time then
            node = id
            time, sequence = string.match(id, '^(%d+)-(%d+)$')
            sequence = tonumber(sequence)
        end
    end
    nodes = nodes + count
    if mirror ~= 'all' and nodes > tonumber(mirror) then
        redis.call('XTRIM', KEYS[4], 'MAXLEN', '=', mirror)
        nodes = tonumber(mirror)
    end
    if ARGV[7] ~= '' then
        redis.call('PEXPIRE', KEYS[4], ARGV[7])
    else
        redis.call('PERSIST', KEYS[4])
    end
end

if digest ~= '' then
    local ends = string.format('%.0f', now + tonumber(ARGV[9]))
    redis.call('ZADD', KEYS[5], ends, digest)
    local gone = redis.call('ZRANGEBYSCORE', KEYS[5], '-inf', string.format('%.0f', now), 'LIMIT', 0, 16)
    if #gone > 0 then
        redis.call('ZREM', KEYS[5], unpack(gone))
    end
    redis.call('PEXPIREAT', KEYS[5], redis.call('ZREVRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2])
end

local evicted = math.max(0, math.min(length, window) + count - window)
return {0, once(math.min(length + count, window) .. ' ' .. evicted .. ' ' .. node), rows, nodes}
