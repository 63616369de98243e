-- vacant: whether a scope holds no turn, nothing staged and no node. Included, not a script of its own.
--
-- KEYS[9]  turns     list
-- KEYS[10]  staged   list
-- KEYS[11+]  the streams of the scope's layers, ARGV[8] of them
-- LOCALS   vacant()
-- COST     2 commands, 1 more for each layer

local function vacant()
    local held = redis.call('LLEN', KEYS[9]) + redis.call('LLEN', KEYS[10])
    for i = 11, 10 + tonumber(ARGV[8]) do
        -- A stream that was emptied stands on, to remember its last id.
        held = held + redis.call('XLEN', KEYS[i])
    end
    return held == 0
end
