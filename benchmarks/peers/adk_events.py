"""What both Google ADK session services share: a session is loaded once, then events are appended to it."""

from __future__ import annotations

from typing import Any

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.genai import types

APP, USER = "bench", "u"


class Events:
    """See loops.py. `self._service` is the subclass's."""

    threads = False
    _service: Any

    async def session(self, conversation: str) -> Any:
        who = {"app_name": APP, "user_id": USER, "session_id": conversation}
        found = await self._service.get_session(**who)
        if found is not None:
            return found
        try:
            return await self._service.create_session(**who)
        except AlreadyExistsError:
            return await self._service.get_session(**who)

    def message(self, text: str) -> Any:
        return Event(author="user", content=types.Content(role="user", parts=[types.Part(text=text)]))

    async def append(self, session: Any, message: Any) -> None:
        await self._service.append_event(session, message)

    async def read(self, session: Any) -> Any:
        return await self._service.get_session(app_name=APP, user_id=USER, session_id=session.id)

    async def texts(self, session: Any) -> list[str]:
        return [event.content.parts[0].text for event in (await self.read(session)).events]
