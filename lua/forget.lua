-- forget: take a scope out of its tenant's index if nothing of it is left. It may be repeated without harm.
--
-- KEYS[1]  scopes    sorted set: see scope.lua
-- KEYS[2]  tenants   set: see scope.lua
-- KEYS[3+]  every key that the scope may have, but its operation ids
-- ARGV[1]  the scope's path, encoded
-- ARGV[2]  the tenant, encoded
-- RETURNS  1 when it was forgotten, 0 when something is there
-- COST     4 commands, 1 more for the tenant's last scope in this partition; 1 when something is there

if redis.call('EXISTS', unpack(KEYS, 3)) > 0 then
    return 0
end
if #ARGV < 2 then
    return redis.error_reply('ERR this script takes a path and a tenant')
end
redis.call('SCARD', KEYS[2])
redis.call('ZREM', KEYS[1], ARGV[1])
if redis.call('ZCARD', KEYS[1]) == 0 then
    redis.call('SREM', KEYS[2], ARGV[2])
end
return 1
