-- once: what makes a write happen once. Included at the head of every write script; not a script of its own.
--
-- An operation id is made once per call and travels with every attempt of it. A second attempt gets the first one's
-- receipt back; so does a first attempt that arrives late, after its own retry. Ids are kept in two generations, by
-- time and not by number: a count would forget an id within milliseconds on a busy scope. A generation takes ids for
-- KEEP and lives for twice that, so an id is known for at least KEEP. Where writers differ, the longest KEEP holds.
--
-- KEYS[1]  ops       hash: operation id -> receipt, 'born' -> ms since the epoch, 'keep' -> the longest KEEP asked for
-- KEYS[2]  ops:old   hash: the generation before
-- ARGV[1]  operation id, 16 bytes
-- ARGV[2]  KEEP in ms; negative to ask first whether the user may run all that the script runs, on all its keys
-- LOCALS   now (ms since the epoch), once(receipt) -> receipt, to be called after the last write
-- RETURNS  {1, receipt} at once when the operation was applied before; {4, command or key} when the user may not
--          use it: a script that is stopped in its middle has written half, and Redis does not roll back. Before 7.0 a
--          server cannot tell.
-- COST     4 commands, 5 when the first generation begins, 6 when another does

if tonumber(ARGV[2]) < 0 and redis.acl_check_cmd then
    local key = KEYS[1]
    local samples = {
        TIME = {},
        RENAME = {key, key},
        UNLINK = {key},
        EXISTS = {key},
        XINFO = {'GROUPS', key},
        XRANGE = {key, '-', '+'},
        XREVRANGE = {key, '+', '-'},
        XADD = {key, '*', 'f', 'v'},
        XTRIM = {key, 'MAXLEN', '0'},
    }
    --@commands
    for _, command in ipairs(commands) do
        if not redis.acl_check_cmd(command, unpack(samples[command] or {key, '1', '1'})) then
            return {4, command}
        end
    end
    for _, name in ipairs(KEYS) do
        if not redis.acl_check_cmd('HSET', name, 'f', 'v') then
            return {4, name}
        end
    end
end

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local known = redis.call('HMGET', KEYS[1], ARGV[1], 'born', 'keep')
local receipt = known[1] or redis.call('HGET', KEYS[2], ARGV[1])
if receipt then
    -- A write, since WAIT speaks of what its own connection wrote: an attempt before used another one.
    local keep = math.max(math.abs(tonumber(ARGV[2])), tonumber(known[3] or '0'))
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 2 * keep))
    return {1, receipt}
end

local function once(outcome)
    local asked, kept = math.abs(tonumber(ARGV[2])), tonumber(known[3] or '0')
    local keep = math.max(asked, kept)
    -- Also when the birth lies ahead, as after a failover to a clock that is behind: the old ids must not go early.
    if known[2] and now - tonumber(known[2]) < keep then
        redis.call('HSET', KEYS[1], ARGV[1], outcome)
        if asked <= kept then
            return outcome
        end
        redis.call('HSET', KEYS[1], 'keep', string.format('%.0f', keep))
    else
        if known[2] then
            redis.call('RENAME', KEYS[1], KEYS[2])
        end
        local born = string.format('%.0f', now)
        redis.call('HSET', KEYS[1], ARGV[1], outcome, 'born', born, 'keep', string.format('%.0f', keep))
    end
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 2 * keep))
    return outcome
end
