-- feed: what was written, published where the deployment has a feed. Included after once.lua; not a script of its own.
--
-- KEYS[6]  feed      stream: changes, each 's' sequence number, 'k' kind, 'p' path, and what the kind needs
-- KEYS[7]  feed:seq  counter of the feed
-- ARGV[3]  the scope's path, encoded
-- ARGV[5]  how many entries to keep; '' for no feed
-- ARGV[6]  how many to keep at most while a group has not acknowledged them
-- LOCALS   publish(kind, field, value, ...)
-- COST     nothing without a feed, 4 commands with one, 1 more when it is full; where a group reads that, 5 to 7 more

-- What is published comes last, so it is made sure first that it can be: a list is no stream, and text no counter.
local published = 0
if ARGV[5] ~= '' then
    local number = '^%d+$'
    if not string.find(ARGV[5] or '', number) or not string.find(ARGV[6] or '', number) then
        return redis.error_reply('ERR the length of the feed is no number')
    end
    published = redis.call('XLEN', KEYS[6])
    if not tonumber(redis.call('GET', KEYS[7]) or '0') then
        return redis.error_reply('WRONGTYPE the counter of the feed is no number')
    end
end

local function publish(kind, ...)
    if ARGV[5] == '' then
        return
    end
    local cap, groups = '9007199254740991', {}
    if published > 0 and published >= tonumber(ARGV[5]) then
        groups = redis.call('XINFO', 'GROUPS', KEYS[6])
        cap = #groups == 0 and ARGV[5] or cap
    end
    redis.call('XADD', KEYS[6], 'MAXLEN', '=', cap, '*', 's', redis.call('INCR', KEYS[7]), 'k', kind, 'p', ARGV[3], ...)
    published = math.min(published + 1, tonumber(cap))
    if #groups == 0 then
        return
    end
    -- The oldest id that one of these groups has yet to acknowledge.
    local function unread(groups)
        local oldest
        for _, group in ipairs(groups) do
            local fields = {}
            for i = 1, #group, 2 do
                fields[group[i]] = group[i + 1]
            end
            local id = fields['last-delivered-id']
            if fields['pending'] > 0 then
                id = redis.call('XPENDING', KEYS[6], fields['name'])[2]
            end
            local ms, seq = string.match(id, '^(%d+)-(%d+)$')
            if not oldest or tonumber(ms) < oldest[1] or (tonumber(ms) == oldest[1] and tonumber(seq) < oldest[2]) then
                oldest = {tonumber(ms), tonumber(seq), id}
            end
        end
        return oldest[3]
    end

    -- What a group has not acknowledged stays, up to the hard cap; beyond it the numbers tell the reader of the gap.
    local waiting, excess = unread(groups), published - tonumber(ARGV[5])
    local oldest = redis.call('XRANGE', KEYS[6], '-', waiting, 'COUNT', math.min(excess, 64))
    for i = 1, #oldest do
        if oldest[i][1] ~= waiting then
            redis.call('XDEL', KEYS[6], oldest[i][1])
        end
    end
    redis.call('XTRIM', KEYS[6], 'MAXLEN', '=', ARGV[6])
    published = redis.call('XLEN', KEYS[6])
end
