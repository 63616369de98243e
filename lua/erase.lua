-- erase: remove the entries of a scope from a feed, a bounded number at a time: they hold content. What says that the
-- scope was purged stays. It may be repeated without harm.
--
-- KEYS[1]  feed      stream: see feed.lua
-- ARGV[1]  the scope's path, encoded
-- ARGV[2]  '1' to remove also those of the scopes below it, '0' for this one alone
-- ARGV[3]  where to go on: '-', or the id after '('
-- ARGV[4]  the last id
-- RETURNS  {next, removed}: next is the ARGV[3] of the next call, '' at the end
-- COST     1 command for each 8 entries read, 1 more when some are removed; it stops after 256 entries or 256 KiB

local below = ARGV[1] .. '/'
local first, read, bytes, gone = ARGV[3], 0, 0, {}
while first ~= '' and read < 256 and bytes < 262144 do
    local page = redis.call('XRANGE', KEYS[1], first, ARGV[4], 'COUNT', 8)
    for _, entry in ipairs(page) do
        local fields = {}
        for i = 1, #entry[2], 2 do
            fields[entry[2][i]] = entry[2][i + 1]
            bytes = bytes + #entry[2][i + 1]
        end
        local path = fields['p'] or ''
        local inside = path == ARGV[1] or (ARGV[2] == '1' and string.sub(path, 1, #below) == below)
        if inside and fields['k'] ~= 'purge' then
            gone[#gone + 1] = entry[1]
        end
    end
    read = read + #page
    first = #page == 8 and '(' .. page[8][1] or ''
end
if #gone > 0 then
    redis.call('XDEL', KEYS[1], unpack(gone))
end
return {first, #gone}
