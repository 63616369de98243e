-- once: what makes a write happen once. Included at the head of every write script; not a script of its own.
--
-- An operation id is made once per call and travels with every attempt of it. A second attempt gets the first one's
-- receipt back; so does a first attempt that arrives late, after its own retry. Ids are kept in two generations, by
-- time and not by number: a count would forget an id within milliseconds on a busy scope. A generation takes ids for
-- KEEP and lives for twice that, so an id is known for at least KEEP. Where writers differ, the longest KEEP holds.
--
-- KEYS[1]  ops       hash: operation id -> receipt, 'born' -> ms since the epoch, 'keep' -> the longest KEEP asked for,
--                    'old' -> '0' when no generation came before, 'told' -> how the last push was set, when another
--                    of its kind need not look at more than again.lua does (ADR-008)
-- KEYS[2]  ops:old   hash: the generation before
-- ARGV[1]  operation id, 16 bytes
-- ARGV[2]  KEEP in ms; negative to ask first whether the user may run all that the script runs, on all its keys
-- LOCALS   now (ms since the epoch); keep, the longest KEEP in ms; open, whether the generation goes on taking ids;
--          asked, kept, KEEP of this call and of those before; known[5], what was told; once(receipt, told) -> receipt,
--          to be called after the last write; told: true when what was told before still holds
-- RETURNS  {1, receipt} at once when the operation was applied before; {4, command or key} when the user may not
--          use it: a script that is stopped in its middle has written half, and Redis does not roll back. Before 7.0 a
--          server cannot tell.
-- COST     3 commands, 6 when a generation begins, 4 where another came before it

local asked = tonumber(ARGV[2] or '')
if not asked or asked % 1 ~= 0 or asked >= 1e16 or asked <= -1e16 then
    return redis.error_reply('ERR argument 2 is no whole number')
end
if asked < 0 and redis.acl_check_cmd then
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
        -- Of a key that tenants share a user may have no more than this.
        if not redis.acl_check_cmd('PEXPIRE', name, '1') then
            return {4, name}
        end
    end
end
asked = asked < 0 and -asked or asked

local clock = redis.call('TIME')
local now = clock[1] * 1000 + (clock[2] - clock[2] % 1000) / 1000
local known = redis.call('HMGET', KEYS[1], ARGV[1], 'born', 'keep', 'old', 'told')
-- A hash that something else wrote to must not stop a write in its end.
local birth = tonumber(known[2] or '')
local kept = known[3] == ARGV[2] and asked or tonumber(known[3] or '') or 0
local keep = kept > asked and kept < 1e16 and kept or asked
-- Open also when the birth lies ahead, as after a failover to a clock that is behind: the old ids must not go early.
local open = birth and now - birth < keep
-- The generation before is asked when there is one, and when this one is about to take its place.
local receipt = known[1] or ((known[4] ~= '0' or not open) and redis.call('HGET', KEYS[2], ARGV[1]))
if receipt then
    -- A write, since WAIT speaks of what its own connection wrote: an attempt before used another one.
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 2 * keep))
    return {1, receipt}
end

local function once(outcome, told)
    local same = open and asked <= kept
    if same and (told == true or (told or '') == (known[5] or '')) then
        redis.call('HSET', KEYS[1], ARGV[1], outcome)
        return outcome
    end
    told = told ~= true and (not open or now >= birth) and told or ''
    if same then
        redis.call('HSET', KEYS[1], ARGV[1], outcome, 'told', told)
        return outcome
    end
    if open then
        redis.call('HSET', KEYS[1], ARGV[1], outcome, 'keep', keep, 'told', told)
    else
        local old = known[2] and redis.call('RENAME', KEYS[1], KEYS[2]) and 1 or redis.call('EXISTS', KEYS[2])
        redis.call('HSET', KEYS[1], ARGV[1], outcome, 'born', now, 'keep', keep, 'old', old, 'told', told)
    end
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 2 * keep))
    return outcome
end
