"""The rules of an ACL user that can run what this package runs, on its own keys, and nothing else.

A script's call needs the right to read and to write each key that it names, and the scripts name keys that tenants
share. From version 7.0 on a user may have selectors, and a call is allowed if one of them allows all of it. So one
selector allows a tenant to name the shared keys to a script, and others allow what the script does to them: it counts
the tenant in and out of the set of tenants, and cannot read the set. See docs/isolation.md.
"""

from __future__ import annotations

from symfonic_redis.errors import ConfigurationError
from symfonic_redis.keys import check_prefix, config_key, encode_id
from symfonic_redis.scope import check_id
from symfonic_redis.scripts import commands_of, runnable

OLDEST = (6, 2)
"""The oldest server there are rules for. It allows a command on all of a user's keys or on none."""

_SELECTORS = (7, 0)
"""From here on a user has selectors, and keys that it may only read."""

_SETINFO = (7, 2)
"""From here on the driver's name for itself is a command of its own."""

# What is sent outside scripts, and changes nothing.
_READS = frozenset(
    {
        *("GET", "TIME", "PING", "INFO", "EXISTS", "TYPE", "PTTL", "LRANGE", "LLEN"),
        *("XLEN", "XRANGE", "XREVRANGE", "XREAD", "ZCARD", "ZSCAN", "ZREVRANGEBYSCORE"),
    }
)
# How nodes of a cluster are found, and replicas waited for.
_ROUTING = frozenset({"CLUSTER|SLOTS", "ASKING", "READONLY", "WAIT"})
_TRACKING = frozenset({"CLIENT|TRACKING"})
_RELAY_READS = frozenset({"SMEMBERS", "SUNION", "HMGET"})
_WRITES = frozenset({"SET", "SREM"})
_RUN = frozenset({"EVAL", "EVALSHA"})

_READING_SCRIPTS = frozenset({"nodes", "relay_status"})
_RELAY = "relay_"

# What scope.lua, forget.lua and purge.lua do to the set of tenants, and once.lua and `TYPE` ask of any key.
_COUNTED = frozenset({"SADD", "SREM", "SCARD", "PTTL", "PERSIST", "PEXPIRE", "TYPE"})
# What drop.lua does to the sets in which relays note the feeds that they have read.
_DROPPED = frozenset({"SREM", "SCARD", "PEXPIRE"})

_PARTITION = "{[0-9][0-9][0-9][0-9]}"


def acl_rules(
    tenant: str | None = None,
    *,
    prefix: str = "swm",
    read_only: bool = False,
    tracking: bool = False,
    database: int = 0,
    version: tuple[int, int] = _SELECTORS,
) -> tuple[str, ...]:
    """The rules of a user for one tenant, or for a service that serves all tenants of a prefix.

    `await client.execute_command("ACL", "SETUSER", name, "on", f">{password}", *acl_rules("acme"))`. The rules take
    away what the user had before, but its passwords. They bind it only where the `default` user is off or has a
    password, for any connection may RESET itself to that one. The commands are those of the scripts and of this
    package, so make the rules anew when you upgrade it.

    A tenant's user runs everything but a relay, which serves all tenants of a partition. It reads the deployment's
    configuration and does not write it: connect once as a service, or run `symfonic-redis init`, before.

    Args:
        tenant: whose keys; None for all keys of the prefix, as services, relays and operators need.
        prefix: of the deployment.
        read_only: reading alone: windows, evicted turns, nodes, exports, watching, listing.
        tracking: also what `track_windows` needs. It lets the user learn the names of all keys that change, others'
            too: see docs/isolation.md.
        database: of the URL; another than 0 needs the right to select one.
        version: of the server, such as `(7, 2)`, where it is older or newer than 7.0; Valkey counts as 7.2. Before 7.0
            a tenant's user may also write the configuration and cannot purge its whole tenant.

    Raises:
        InvalidInput: the tenant's id is empty or too long.
        ConfigurationError: the prefix cannot be one, or the server is too old.

    Cost: none; the server is not asked.
    """
    if version < OLDEST:
        raise ConfigurationError(f"there are no rules for servers before {OLDEST[0]}.{OLDEST[1]}: upgrade the server")
    shard = f"{check_prefix(prefix)}:{_PARTITION}"
    own = f"{shard}:*" if tenant is None else f"{shard}:{encode_id(check_id(tenant))}:*"
    rules = ["resetkeys", "resetchannels", "-@all"]
    connection = frozenset({"CLIENT|SETINFO"} if version >= _SETINFO else ())
    connection |= _TRACKING if tracking else frozenset()
    connection |= _ROUTING | ({"SELECT"} if database else set())
    commands = _commands(relay=tenant is None, read_only=read_only)
    if version < _SELECTORS:
        shared = [] if tenant is None or read_only else [f"~{shard}:tenants"]
        return (*rules, f"~{own}", f"~{config_key(prefix)}", *shared, *_allow(commands | _RUN | connection))
    mode = "%R~" if read_only else "~"
    config = "~" if tenant is None and not read_only else "%R~"
    rules += ["clearselectors", f"{mode}{own}", f"{config}{config_key(prefix)}", *_allow(commands | connection)]
    if tenant is None or read_only:
        return (*rules, _selector(_RUN, own))
    tenants, feeds, relays = f"{shard}:tenants", f"{shard}:feeds@*", f"{shard}:relays"
    return (
        *rules,
        _selector(_RUN, own, tenants, feeds),
        _selector(_COUNTED, tenants),
        _selector(_DROPPED, feeds),
        _selector(frozenset({"SMEMBERS"}), relays),
    )


def _commands(*, relay: bool, read_only: bool) -> frozenset[str]:
    """What is run on a user's own keys: by scripts, and outside them."""
    scripts = [name for name in runnable() if relay or not name.startswith(_RELAY)]
    sent = _READS | (_RELAY_READS if relay else frozenset())
    if read_only:
        scripts = [name for name in scripts if name in _READING_SCRIPTS]
    elif relay:
        sent |= _WRITES
    return sent.union(*map(commands_of, scripts))


def _allow(commands: frozenset[str]) -> list[str]:
    return [f"+{command.lower()}" for command in sorted(commands)]


def _selector(commands: frozenset[str], *patterns: str) -> str:
    return f"({' '.join([*_allow(commands), *(f'~{pattern}' for pattern in patterns)])})"
