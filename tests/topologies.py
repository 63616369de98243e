"""The topologies behind `connect`, of real servers on loopback: each started when it is first asked for."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis as sync_redis
from servers import Sentinel, Server, binary, free_port

PASSWORD = "open-sesame"

# As fast as can be: a replica is in sync at once, and a node that is gone is missed within a second.
FAST = ("--repl-diskless-sync-delay", "0")
CLUSTERED = (
    *FAST,
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1000",
    "--cluster-replica-validity-factor",
    "0",
)
SLOTS = 16384
NAME = "memory"


class Topology:
    """Some servers, and the URL under which `connect` finds them. `servers` are those with data, masters first."""

    def __init__(
        self, url: str, servers: list[Server], others: list[Server] | None = None, *, folder: str = ""
    ) -> None:
        self.url = url
        self.servers = servers
        self.others = others or []
        self.folder = folder

    def admin(self, server: Server) -> sync_redis.Redis:
        """A client of one server, over its plain port, as the default user."""
        return sync_redis.Redis(port=server.port, decode_responses=True)

    def flush_scripts(self) -> None:
        """Let every server forget its scripts."""
        for server in self.servers:
            with self.admin(server) as client:
                client.script_flush()

    def close_idle(self) -> None:
        """Let every server close the connections of its clients."""
        for server in self.servers:
            with self.admin(server) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def stop(self) -> None:
        for server in (*self.others, *self.servers):
            server.stop()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)


def until(happens: Callable[[], object], seconds: float = 30) -> None:
    """Ask again and again until the answer is true."""
    limit = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < limit
        time.sleep(0.02)


def standalone() -> Topology:
    server = Server(binary("valkey"))
    return Topology(server.url, [server])


def acl() -> Topology:
    """A user who may do what a worker needs, and nothing of an administrator's."""
    server = Server(binary("valkey"))
    with sync_redis.Redis(port=server.port) as admin:
        admin.execute_command("ACL", "SETUSER", "worker", "on", f">{PASSWORD}", "~t*", "+@all", "-@dangerous", "+info")
    return Topology(f"redis://worker:{PASSWORD}@127.0.0.1:{server.port}", [server])


def cluster(
    masters: int = 3,
    replicas: int = 1,
    *,
    kind: str = "valkey",
    host: str = "127.0.0.1",
    options: Callable[[], tuple[str, ...]] = tuple,
) -> Topology:
    """So many masters, each with so many replicas, which know each other by `host`; `options` of each server."""
    found, buses = binary(kind), [free_port() for _ in range(masters * (1 + replicas))]
    servers = [Server(found, *CLUSTERED, "--cluster-port", str(bus), *options()) for bus in buses]
    clients = [sync_redis.Redis(port=server.port, decode_responses=True) for server in servers]
    for number, client in enumerate(clients[:masters]):
        first, last = SLOTS * number // masters, SLOTS * (number + 1) // masters - 1
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
    for server, bus in zip(servers[1:], buses[1:], strict=True):
        clients[0].execute_command("CLUSTER", "MEET", host, server.port, bus)
    ids = [client.execute_command("CLUSTER", "MYID") for client in clients[:masters]]

    until(lambda: all(_knows(client, len(servers)) for client in clients))
    for number, client in enumerate(clients[masters:]):
        client.execute_command("CLUSTER", "REPLICATE", ids[number % masters])
    until(lambda: all(client.info("replication")["master_link_status"] == "up" for client in clients[masters:]))

    until(lambda: all("cluster_state:ok" in raw(client, "CLUSTER", "INFO") for client in clients))
    until(lambda: all(len(part) == 3 + replicas for client in clients for part in raw(client, "CLUSTER", "SLOTS")))
    for client in clients:
        client.close()
    place = f"[{host}]" if ":" in host else host
    seeds = ",".join(f"{place}:{server.port}" for server in servers[:2])
    return Topology(f"redis+cluster://{seeds}", servers)


def _knows(client: sync_redis.Redis, count: int) -> bool:
    lines = raw(client, "CLUSTER", "NODES").splitlines()
    return len(lines) == count and not any("handshake" in line for line in lines)


def raw(client: sync_redis.Redis, *command: object) -> Any:
    """A reply as it came."""
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command(*command)
        return connection.read_response()
    finally:
        client.connection_pool.release(connection)


def sentinel(replicas: int = 1) -> Topology:
    """A master, its replicas, and three sentinels."""
    found = binary("valkey")
    master = Server(found, *FAST)
    servers = [master, *(Server(found, *FAST, "--replicaof", f"127.0.0.1 {master.port}") for _ in range(replicas))]
    sentinels: list[Server] = [Sentinel(found, NAME, master.port, 2) for _ in range(3)]
    for server in sentinels:
        with sync_redis.Redis(port=server.port, decode_responses=True) as client:
            until(lambda client=client: _is_watched(client, replicas))
    seeds = ",".join(f"127.0.0.1:{server.port}" for server in sentinels)
    return Topology(f"redis+sentinel://{seeds}/{NAME}", servers, sentinels)


def _is_watched(client: sync_redis.Redis, replicas: int) -> bool:
    state = client.sentinel_master(NAME)
    return state["num-slaves"] == replicas and state["num-other-sentinels"] == 2


def certificates(*names: str) -> tuple[str, tuple[str, ...]]:
    """A folder with `ca.pem`, `server.pem` and `client.pem` (key and certificate), and a server's options for it.

    The server's certificate is of localhost, and of `names`.
    """
    trustme = pytest.importorskip("trustme", reason="trustme is not installed")

    folder = tempfile.mkdtemp(prefix="swm-test-tls-")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(f"{folder}/ca.pem")
    authority.issue_cert("localhost", *names).private_key_and_cert_chain_pem.write_to_path(f"{folder}/server.pem")
    authority.issue_cert("worker").private_key_and_cert_chain_pem.write_to_path(f"{folder}/client.pem")
    pem = f"{folder}/server.pem"
    return folder, (*("--tls-cert-file", pem, "--tls-key-file", pem, "--tls-ca-cert-file", f"{folder}/ca.pem"),)


def tls() -> Topology:
    return _tls("no", "")


def mtls() -> Topology:
    """Clients need a certificate too."""
    return _tls("yes", "&ssl_certfile={0}/client.pem&ssl_keyfile={0}/client.pem")


def _tls(clients: str, more: str) -> Topology:
    found = binary("redis")  # the one that is built with TLS
    folder, options = certificates()
    port = free_port()
    server = Server(found, "--tls-port", str(port), "--tls-auth-clients", clients, *options)
    url = f"rediss://localhost:{port}/0?ssl_ca_certs={folder}/ca.pem&ssl_check_hostname=true{more.format(folder)}"
    return Topology(url, [server], folder=folder)


def tls_cluster() -> Topology:
    """Nodes that talk in TLS, to clients and to each other."""
    found = certificates("127.0.0.1")
    ports: list[int] = []

    def options() -> tuple[str, ...]:
        ports.append(free_port())
        return ("--tls-port", str(ports[-1]), "--tls-cluster", "yes", "--tls-auth-clients", "no", *found[1])

    made = cluster(3, 0, kind="redis", options=options)
    made.url = f"rediss+cluster://localhost:{ports[0]}?ssl_ca_certs={found[0]}/ca.pem"
    made.folder = found[0]
    return made


def tls_sentinel() -> Topology:
    """A master and a sentinel, both in TLS, each with a password of its own."""
    found = binary("redis")
    folder, options = certificates("127.0.0.1")
    secure = (*options, "--tls-auth-clients", "no", "--tls-replication", "yes")
    ports = free_port(), free_port()
    master = Server(found, *FAST, "--tls-port", str(ports[0]), *secure, "--requirepass", PASSWORD)
    lines = [f"{name[2:]} {value}" for name, value in zip(secure[::2], secure[1::2], strict=True)]
    lines += [f"tls-port {ports[1]}", "requirepass of-the-sentinel", f"sentinel auth-pass {NAME} {PASSWORD}"]
    asked = Sentinel(found, NAME, ports[0], 1, *lines)
    query = f"ssl_ca_certs={folder}/ca.pem&sentinel_password=of-the-sentinel"
    url = f"rediss+sentinel://:{PASSWORD}@localhost:{ports[1]}/{NAME}/0?{query}"
    return Topology(url, [master], [asked], folder=folder)


MAKERS: dict[str, Callable[[], Topology]] = {
    "standalone": standalone,
    "sentinel": sentinel,
    "cluster": cluster,
    "tls": tls,
    "mtls": mtls,
    "acl": acl,
}
