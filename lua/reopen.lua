-- reopen: take a tombstone away, once. Others that close the same scope from above stay.
--
-- KEYS[1..2]  see once.lua
-- KEYS[3]   closed    hash: see closed.lua
-- ARGV[1..2]  see once.lua
-- ARGV[3]   what: 'tenant', 'scope:<path>' or 'tree:<path>'
-- RETURNS   {state, receipt}: state 0 applied, 1 applied before by this operation. The receipt is '1' when it was
--           closed, else '0'.
-- COST      4 commands, 1 more when a tombstone is there
--@include once
--@include arguments

local refusal = malformed(3, 3, {})
if refusal then return refusal end

local ends = redis.call('HGET', KEYS[3], ARGV[3])
if ends then
    redis.call('HDEL', KEYS[3], ARGV[3])
end
return {0, once(ends and tonumber(ends) > now and '1' or '0')}
