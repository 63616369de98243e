-- closed: refuses a write to a scope that was purged, before anything is written. Included after once.lua.
--
-- KEYS[3]  closed    hash: 'tenant', 'scope:<path>' or 'tree:<path>' -> ms since the epoch until which it is closed
-- ARGV[3]  the scope's path, encoded
-- RETURNS  {3, until} at once when the scope, one above it, or the tenant is closed
-- COST     1 command, 2 where something of the tenant is closed in this partition

if redis.call('HLEN', KEYS[3]) > 0 then
    local marks = {'tenant', 'scope:' .. ARGV[3]}
    local depth = ''
    for level in string.gmatch(ARGV[3], '[^/]+/[^/]+') do
        depth = depth == '' and level or depth .. '/' .. level
        marks[#marks + 1] = 'tree:' .. depth
    end
    for _, ends in ipairs(redis.call('HMGET', KEYS[3], unpack(marks))) do
        if ends and tonumber(ends) > now then
            return {3, ends}
        end
    end
end
