"""Every way to say where the server is, and what is wrong with the others."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis as sync_redis
from own_server import PASSWORD, everything_said, own_server, with_password
from redis import asyncio as aioredis
from servers import free_port

from symfonic_redis import (
    ConfigurationError,
    Deployment,
    MemoryEntry,
    MemoryUnavailable,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    connect,
)

ROOT = Path(__file__).parents[1]

# Another process: pushes one turn to the deployment at argv[1].
PUSHER = """
import asyncio, sys
from symfonic_redis import MemoryEntry, TenantScope, WorkingLayer, connect

async def main():
    scope = TenantScope.root("org", "acme").child("conversation", "c-123")
    async with connect(sys.argv[1]) as redis:
        receipt = await WorkingLayer(redis).push(
            scope, MemoryEntry.turn(scope, speaker="user", turn_id="other", content="from another process")
        )
        print(receipt.window_length)

asyncio.run(main())
"""

BAD_URLS = [
    f"http://:{PASSWORD}@localhost:6379/0",
    f"redis+nothing://:{PASSWORD}@localhost:6379/0",
    f"localhost:{PASSWORD}",
    f":{PASSWORD}@localhost:6379",
    f"redis:/:{PASSWORD}@localhost:6379/0",
    f"redis::{PASSWORD}@localhost:6379/0",
    f"//:{PASSWORD}@localhost:6379/0",
    f"redis://:{PASSWORD}@[::1/0",
    f"redis://:{PASSWORD}@localhost:port/0",
    f"redis://:{PASSWORD}@localhost:99999/0",
    f"redis://user:{PASSWORD}/with/slashes@localhost:6379/0",
    f"redis://:{PASSWORD}@localhost:6379/0?db=zero",
    f"redis://:{PASSWORD}@localhost:6379/zero",
    f"embedded://{PASSWORD}/relative",
    f"unix://:{PASSWORD}@",
    "unix://",
    "redis",
    "",
    " ",
    "\x00",
]


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_url_that_cannot_be_used_is_refused_without_being_quoted(url):
    with pytest.raises(ConfigurationError) as caught:
        connect(url)
    assert PASSWORD not in everything_said(caught.value)
    assert "://" in str(caught.value)


@pytest.mark.parametrize(
    "tail", ["?nonsense=1", "?ssl_ca_certs=/etc/ca.pem", "?socket_timeout=soon", f"?password={PASSWORD}&nonsense=1"]
)
async def test_an_option_that_the_scheme_has_not_is_a_configuration_error(tail):
    with pytest.raises(ConfigurationError) as caught:
        async with connect(f"redis://:{PASSWORD}@127.0.0.1:{free_port()}/0{tail}", deadline=0.5):
            pass
    assert PASSWORD not in everything_said(caught.value)


@pytest.mark.parametrize("port", ["abc", "-1", "99999"])
async def test_an_embedded_servers_port_must_be_one(port):
    with pytest.raises(ConfigurationError):
        async with connect(f"embedded://?port={port}"):
            pass


@pytest.mark.parametrize(
    "options",
    [
        {"deadline": 0},
        {"deadline": -1},
        {"deadline": float("nan")},
        {"deadline": float("inf")},
        {"deadline": "5"},
        {"deadline": None},
        {"attempt_timeout": 0},
        {"attempt_timeout": float("nan")},
        {"max_connections": 0},
        {"max_connections": 1.5},
        {"max_row_bytes": 0},
        {"prefix": ""},
        {"prefix": "a b"},
        {"prefix": "a*"},
        {"prefix": "{a}"},
        {"prefix": "x" * 65},
        {"prefix": None},
    ],
    ids=str,
)
def test_an_option_out_of_range_is_refused(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        connect("redis://localhost", **options)


def test_a_misspelt_option_is_refused():
    with pytest.raises((TypeError, ConfigurationError), match="dead_line"):
        connect("redis://localhost", dead_line=5)


@pytest.mark.parametrize(
    "target",
    [sync_redis.Redis(), aioredis.ConnectionPool(), None, 6379, b"redis://localhost", object()],
    ids=lambda target: type(target).__name__,
)
@pytest.mark.parametrize("take", [connect, WorkingLayer, StreamGraphStore])
def test_what_is_neither_a_url_nor_an_async_client_is_refused(target, take):
    with pytest.raises(ConfigurationError, match=r"redis\.asyncio\.Redis"):
        take(target)


def test_the_deployment_shows_where_it_leads_and_no_password():
    deployment = connect(f"redis://user:{PASSWORD}@example.com:7000/3", prefix="app")
    assert repr(deployment) == "<Deployment 'app' at example.com:7000>"
    assert deployment.endpoint == "example.com:7000"


async def _works(deployment: Deployment, scope) -> None:
    turn = MemoryEntry.turn(scope, speaker="user", turn_id="t", content="here")
    assert (await WorkingLayer(deployment).push(scope, turn)).window_length == 1


async def test_a_unix_socket(tmp_path, scope):
    path = tmp_path / "s"
    with own_server("--unixsocket", str(path)):
        async with connect(f"unix://{path}") as deployment:
            assert deployment.endpoint == str(path)
            await _works(deployment, scope)


async def test_databases_of_one_server_are_apart(valkey, prefix, scope):
    url = valkey.url.removesuffix("/0")
    async with connect(f"{url}/3", prefix=prefix) as three, connect(f"{url}/4", prefix=prefix) as four:
        await _works(three, scope)
        await _works(four, scope)


async def test_fakes_are_private_unless_they_have_a_name(scope, prefix):
    async with connect("fake://") as one, connect("fake://") as two:
        await _works(one, scope)
        await _works(two, scope)
        with pytest.raises(ConfigurationError, match="no URL"):
            _ = one.url
    async with connect(f"fake://{prefix}") as one, connect(f"fake://{prefix}") as two:
        await _works(one, scope)
        assert [entry.content for entry in await WorkingLayer(two).get_context(scope)] == ["here"]


async def _another_process_pushes(url: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PUSHER, url, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output, _ = await asyncio.wait_for(other.communicate(), 60)
    return output.decode()


async def test_an_embedded_server_is_gone_with_its_deployment_and_has_a_url_for_others(scope):
    async with connect("embedded://") as deployment:
        await _works(deployment, scope)
        assert deployment.url.startswith("unix:///")
        assert await _another_process_pushes(deployment.url) == "2\n"
        layer = WorkingLayer(deployment)
        assert [entry.content for entry in await layer.get_context(scope)] == ["here", "from another process"]
        url = deployment.url
    with pytest.raises(MemoryUnavailable):
        async with connect(url, deadline=0.3):
            pass


async def test_an_embedded_server_has_no_url_before_it_runs():
    with pytest.raises(ConfigurationError, match="no URL"):
        _ = connect("embedded://").url


async def test_two_processes_share_an_embedded_server_of_one_directory(tmp_path, scope):
    url = f"embedded://{tmp_path}/data"
    async with connect(url) as deployment:
        await _works(deployment, scope)
        assert await _another_process_pushes(url) == "2\n"
        assert len(await WorkingLayer(deployment).get_context(scope)) == 2
    # The data stays when the last user has left.
    assert await _another_process_pushes(url) == "3\n"


async def test_an_embedded_server_listens_on_tcp_when_asked():
    port = free_port()
    async with connect(f"embedded://?port={port}"):
        with socket.create_connection(("127.0.0.1", port), 10):
            pass


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture
def certificates(tmp_path) -> Path:
    """A CA of our own and a server's certificate for 127.0.0.1."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates and is not installed")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    ca = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl(
        tmp_path, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test CA", *ca
    )
    _openssl(tmp_path, "req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=test server")
    (tmp_path / "ext").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "ext")
    _openssl(tmp_path, "x509", "-req", "-in", "server.csr", *signed, "-days", "2", "-out", "server.pem")
    return tmp_path


async def test_tls_with_a_ca_of_ones_own(certificates, scope, prefix):
    port = free_port()
    files = ("--tls-cert-file", f"{certificates}/server.pem", "--tls-key-file", f"{certificates}/server.key")
    trust = ("--tls-ca-cert-file", f"{certificates}/ca.pem", "--tls-auth-clients", "no")
    try:
        running = own_server("--tls-port", str(port), *files, *trust, "--requirepass", PASSWORD, kind="redis")
        with running:
            url = f"rediss://:{PASSWORD}@127.0.0.1:{port}/0"
            async with connect(f"{url}?ssl_ca_certs={certificates}/ca.pem") as deployment:
                await _works(deployment, scope)
            # Unknown to the system, it is not trusted, and no retry makes it so; the reason is said, the password not.
            with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port}") as caught:
                async with connect(url, deadline=1):
                    pass
            assert PASSWORD not in everything_said(caught.value)
            assert "certificate" in everything_said(caught.value)
    except RuntimeError:
        pytest.skip("redis-server is built without TLS")


async def test_a_prefix_sees_nothing_of_another(valkey, prefix):
    scope = TenantScope.root("org", "acme")
    async with connect(valkey.url, prefix=prefix) as one, connect(valkey.url, prefix=f"{prefix}2") as two:
        await _works(one, scope)
        await _works(two, scope)
        await WorkingLayer(one).clear(scope)
        assert len(await WorkingLayer(two).get_context(scope)) == 1


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "redis+sentinel"])
@pytest.mark.parametrize("option", ["protocol=9", "protocol=x", "socket_timeout=x", "nonsense=1"])
def test_an_option_that_the_driver_refuses_is_an_error_of_ours(scheme, option):
    place = "/name" if "sentinel" in scheme else ""
    with pytest.raises(ConfigurationError, match="cannot be read") as caught:
        connect(with_password(f"{scheme}://host:1{place}?{option}"))
    assert PASSWORD not in everything_said(caught.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix", "fake", "embedded", "redis+cluster", "redis+sentinel"])
@pytest.mark.parametrize("rest", ["h?\ud800", "\udfff@h:1", "h:1/\ud800", "u:\ud800@h"])
def test_a_url_that_has_no_bytes_is_refused(scheme, rest):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        connect(f"{scheme}://{rest}")


def test_an_ssl_option_that_the_driver_refuses_is_an_error_of_ours():
    with pytest.raises(ConfigurationError, match="cannot be read"):
        connect("rediss://host:1?ssl_cert_reqs=x")
