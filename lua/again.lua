-- again: a push of one turn where the last write was such a push too, set the same, and nothing else changed the scope
-- since (ADR-008): what once holds for both is not looked at again. Included after feed.lua; not a script of its own.
-- Where a key turns out not to be what it was, the row is taken back and push.lua goes on from the beginning.
--
-- LOCALS   none; keys, arguments and replies are those of push.lua
-- COST     2 commands, 1 more where the list is full, 2 more with a mirror, 1 more for each ttl

if known[5] and ARGV[14] == '1' and ARGV[12] == '' and open and asked <= kept and ARGV[15] and KEYS[12]
    and known[5] == table.concat(ARGV, ' ', 7, 11) then
    local ttl, mirror, nodes, id = ARGV[9], ARGV[10], 0, '-'
    local lasts = ttl ~= '' and ttl + 0 or 1e14
    if mirror ~= '' then
        nodes = redis.call('XLEN', KEYS[9])
        local longer = ARGV[11] ~= '' and ARGV[11] + 0 or 1e14
        lasts = longer > lasts and longer or lasts
    end
    local length = redis.call('LPUSH', KEYS[8], ARGV[15])
    local added = redis.pcall('ZADD', KEYS[4], 'GT', now + lasts, ARGV[3])
    if mirror ~= '' and added == 0 then
        local cap = mirror == 'all' and '9007199254740991' or mirror
        if ARGV[16] and ARGV[16] ~= '' then
            id = redis.pcall('XADD', KEYS[9], 'MAXLEN', '=', cap, '*', 'r', ARGV[15], 'x', ARGV[16])
        else
            id = redis.pcall('XADD', KEYS[9], 'MAXLEN', '=', cap, '*', 'r', ARGV[15])
        end
        nodes = nodes + 1
        if mirror ~= 'all' and nodes > mirror + 0 then
            nodes = mirror + 0
        end
    end
    if added == 0 and type(id) == 'string' then
        local window, most, rows = ARGV[7] + 0, ARGV[8] + 0, length
        if length > most then
            rows = length - 17 > most and length - 17 or most
            redis.call('LTRIM', KEYS[8], '0', length - rows == 1 and '-2' or rows - 1)
        end
        if ttl ~= '' then
            redis.call('PEXPIRE', KEYS[8], ttl)
        end
        if mirror ~= '' and ARGV[11] ~= '' then
            redis.call('PEXPIRE', KEYS[9], ARGV[11])
        end
        publish('push', 'l', 'working', 'i', id, 'r', ARGV[15], 'x', ARGV[16] or '')
        local receipt = length > window and ARGV[7] .. ' 1 ' .. id or length .. ' 0 ' .. id
        return {0, once(receipt, true), rows, nodes}
    end
    redis.call('LTRIM', KEYS[8], '1', '-1')
    if added == 1 then
        redis.call('ZREM', KEYS[4], ARGV[3])
    end
end
