-- arguments: refuses a call that is not as its header says, before anything is written: what a command refuses later, of
-- a number that is none or a key that was not given, would leave half a write. Included, not a script of its own.
--
-- LOCALS   whole(value) -> whether it is a whole number of at most 16 digits; malformed(keys, arguments, numbers, optional)
--          -> an error, or nil: there are fewer keys or arguments, or one of the arguments of these indexes is no whole
--          number; an optional one may be ''
-- COST     nothing

local function whole(value)
    return value and #value < 17 and string.find(value, '^%d+$')
end

local function malformed(keys, arguments, numbers, optional)
    if #KEYS < keys or #ARGV < arguments then
        return redis.error_reply('ERR this script takes more keys or arguments')
    end
    for _, i in ipairs(numbers) do
        if not whole(ARGV[i]) then
            return redis.error_reply('ERR argument ' .. i .. ' is no whole number')
        end
    end
    for _, i in ipairs(optional or {}) do
        if ARGV[i] ~= '' and not whole(ARGV[i]) then
            return redis.error_reply('ERR argument ' .. i .. ' is neither empty nor a whole number')
        end
    end
end
