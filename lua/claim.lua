-- claim: make one relay process the consumer of all that its group read and did not finish. Included, not a script of
-- its own; after fence.lua, for the lease says that every other consumer of the group is dead or fenced off.
--
-- KEYS[2]  feed      stream: changes; each relay is a consumer group
-- ARGV[3]  the relay's name, its group's too
-- ARGV[4]  consumer
-- ARGV[5]  at most so many
-- LOCALS   claim() -> entries, oldest first; a set of their ids; how many were trimmed or erased while they were
--          pending; whether these were all
-- RETURNS  nothing by itself
-- COST     2 commands; 1 more for each other consumer, which is removed

local function claim()
    local reply = redis.call('XAUTOCLAIM', KEYS[2], ARGV[3], ARGV[4], 0, '0-0', 'COUNT', ARGV[5])
    local entries, ids, holes, gone = {}, {}, false, #(reply[3] or {})
    for i = 1, #reply[2] do
        local entry = reply[2][i]
        if entry then
            entries[#entries + 1] = entry
            ids[entry[1]] = true
        else
            holes = true
        end
    end
    if holes then
        -- Version 6.2 keeps what was trimmed among the pending ones and does not name it.
        for _, pending in ipairs(redis.call('XPENDING', KEYS[2], ARGV[3], '-', '+', ARGV[5])) do
            if not ids[pending[1]] then
                gone = gone + redis.call('XACK', KEYS[2], ARGV[3], pending[1])
            end
        end
    end
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[2], ARGV[3])) do
        -- { 'name', its name, 'pending', how many, ... }: a process that restarts leaves its name behind.
        if consumer[2] ~= ARGV[4] and consumer[4] == 0 then
            redis.call('XGROUP', 'DELCONSUMER', KEYS[2], ARGV[3], consumer[2])
        end
    end
    return entries, ids, gone, reply[1] == '0-0'
end
