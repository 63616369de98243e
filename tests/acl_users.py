"""ACL users for a test, on a server that all tests share."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator

from own_server import PASSWORD, with_password
from redis.asyncio import Redis
from servers import Server


class Users:
    """Makes ACL users; they are gone after the test. `admin` may do everything."""

    def __init__(self, server: Server, admin: Redis) -> None:
        self.admin = admin
        self.names: list[str] = []
        self._url = server.url

    async def make(self, *rules: str) -> str:
        """The URL of a user with these rules."""
        self.names.append(f"u{uuid.uuid4().hex[:8]}")
        await self.admin.execute_command("ACL", "SETUSER", self.names[-1], "on", f">{PASSWORD}", *rules)
        return with_password(self._url, self.names[-1])


@contextlib.asynccontextmanager
async def acl_users(server: Server) -> AsyncIterator[Users]:
    async with Redis.from_url(server.url) as admin:
        users = Users(server, admin)
        yield users
        if users.names:
            await admin.execute_command("ACL", "DELUSER", *users.names)
