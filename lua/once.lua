-- once: what makes a write happen once. Included at the head of every write script; not a script of its own.
--
-- An operation id is made once per call and travels with every attempt of it. A second attempt gets the first one's
-- receipt back; so does a first attempt that arrives late, after its own retry. Ids are kept in two generations, by
-- time and not by number: a count would forget an id within milliseconds on a busy scope. A generation takes ids for
-- KEEP and lives for twice that, so an id is known for at least KEEP.
--
-- KEYS[1]  ops       hash: operation id -> receipt, and 'born' -> ms since the epoch
-- KEYS[2]  ops:old   hash: the generation before
-- ARGV[1]  operation id, 16 bytes
-- ARGV[2]  KEEP in ms
-- LOCALS   now (ms since the epoch), once(receipt) -> receipt, to be called after the last write
-- RETURNS  {1, receipt} at once when the operation was applied before
-- COST     3 commands, 5 when a generation begins

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local known = redis.call('HMGET', KEYS[1], ARGV[1], 'born')
local receipt = known[1] or redis.call('HGET', KEYS[2], ARGV[1])
if receipt then
    return {1, receipt}
end

local function once(outcome)
    local keep = tonumber(ARGV[2])
    local born = tonumber(known[2] or '0')
    if now >= born and now - born < keep then
        redis.call('HSET', KEYS[1], ARGV[1], outcome)
        return outcome
    end
    if known[2] then
        redis.call('RENAME', KEYS[1], KEYS[2])
    end
    redis.call('HSET', KEYS[1], ARGV[1], outcome, 'born', string.format('%.0f', now))
    redis.call('PEXPIRE', KEYS[1], string.format('%.0f', 2 * keep))
    return outcome
end
