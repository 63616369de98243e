"""Whole turns of an agent, served by two processes in turn that share nothing but Redis.

Each turn: hydrate (summary and window, one read), ask the model, write what was said, consolidate what was learned,
publish both. Needs `symfonic-redis[embedded]`; give a redis:// URL to use your own server, and `--langchain` to have
the turns answered and summarized by LangChain chat models, which needs `langchain-core` too.
"""

import asyncio
import json
import os
import re
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

from symfonic_redis import (
    ExtractionRequest,
    ExtractionResult,
    LegacyConversationSource,
    MemoryRecord,
    RedisEvictedSource,
    RedisMemoryLifecycle,
    RedisMemoryWriter,
    StreamGraphStore,
    TenantScope,
    WorkingLayer,
    WorkingMemorySummaryService,
    WorkingWindow,
    connect,
    consolidation_handler,
    hydrate,
    lifecycle_handler,
    write_handler,
)

SCOPE = TenantScope.root("org", "acme").child("user", "u-7").child("conversation", "c-123")
QUESTIONS = (
    "Hello, please call me Ada.",
    "My order is A-1042, it has not arrived.",
    "It went to the old address.",
    "Please send it to 12 Quay Street.",
    "Which order was it?",
)


def answer_to(prompt: str) -> str:
    """What the scripted model says: it knows what stands in the prompt, and nothing else."""
    question = prompt.rpartition("user: ")[2]
    order = re.search(r"\b[A-Z]-\d{4}\b", prompt)
    if "Which order" in question:
        return f"It was order {order[0]}." if order else "I do not know which order."
    return "Thank you. What else should I know?"


class ScriptedModel:
    """Has the one method that is used of a chat model."""

    async def ainvoke(self, prompt: str) -> str:
        """Answer a prompt."""
        return answer_to(prompt)


class Extractor:
    """Finds what is worth keeping beyond the conversation. Yours would ask a model."""

    async def extract(self, request: ExtractionRequest) -> ExtractionResult:
        """Look at what the user said in this turn."""
        said = request.user_message
        found = [
            MemoryRecord(scope=request.scope, content=f"{what} {match[1]}", layer=layer)
            for pattern, what, layer in (
                (r"call me (\w+)", "likes to be called", "profile"),
                (r"order is ([A-Z]-\d{4})", "has order", "semantic"),
            )
            if (match := re.search(pattern, said))
        ]
        return ExtractionResult(request.scope, tuple(found))


def records_from(context: SimpleNamespace) -> list[MemoryRecord]:
    """Both sides of the turn, as turns of the window."""
    scope, turn_id = context.request.scope, context.request.turn_id
    return [
        MemoryRecord.turn(scope, speaker="user", turn_id=turn_id, content=context.request.prompt),
        MemoryRecord.turn(scope, speaker="assistant", turn_id=turn_id, content=context.turn.text),
    ]


@dataclass
class Memory:
    """What the stages work with: a writer, a lifecycle, an extractor, and how records are made of a turn."""

    writer: RedisMemoryWriter
    lifecycle: RedisMemoryLifecycle
    extractor: Extractor = field(default_factory=Extractor)
    records_from = staticmethod(records_from)


class Pod:
    """One worker. It keeps no conversation."""

    def __init__(self, redis, *, langchain: bool) -> None:  # noqa: ANN001 - what connect() returns
        layer = WorkingLayer(redis, max_entries=4, graph_store=StreamGraphStore(redis), working_graph_retention=500)
        self.model, summary = langchain_models() if langchain else (ScriptedModel(), {})
        self.source = RedisEvictedSource(layer)
        self.window = WorkingWindow(LegacyConversationSource(layer))
        self.summary = WorkingMemorySummaryService(self.source, **summary)
        memory = Memory(RedisMemoryWriter(layer), RedisMemoryLifecycle(layer))
        # What is missing in `memory` is refused here, before any turn.
        self.stages = {
            "write": write_handler(memory),
            "consolidate": consolidation_handler(memory),
            "publish": lifecycle_handler(memory),
        }

    async def turn(self, scope: TenantScope, number: int, question: str) -> dict:
        """Serve one turn of a conversation."""
        known = await hydrate(self.source, scope, window=self.window, summary=self.summary)
        parts = [f"Earlier:\n{known.summary.text}" if known.summary.text else "", known.window.text]
        prompt = "\n\n".join([*filter(None, parts), f"user: {question}"])
        reply = await self.model.ainvoke(prompt)
        answer = reply if isinstance(reply, str) else reply.content
        context = SimpleNamespace(
            request=SimpleNamespace(scope=scope, prompt=question, turn_id=f"t{number}"),
            turn=SimpleNamespace(text=answer, tool_requests=()),
        )
        told = {}
        for name, stage in self.stages.items():
            result = await stage(context)
            told[name] = result.counts if result.changed else result.reason
        return {"pid": os.getpid(), "answer": answer, "summary": bool(known.summary.text), "stages": told}


def langchain_models():  # noqa: ANN201 - LangChain is an option
    """A LangChain chat model for the answers, and one for the summaries."""
    from langchain_core.language_models.chat_models import SimpleChatModel  # noqa: PLC0415 - only where it is installed
    from langchain_core.language_models.fake_chat_models import FakeListChatModel  # noqa: PLC0415 - as above

    class Scripted(SimpleChatModel):
        def _call(self, messages, *_, **__) -> str:  # noqa: ANN001, ANN002, ANN003 - LangChain's signature
            return answer_to(messages[-1].content)

        @property
        def _llm_type(self) -> str:
            return "scripted"

    summarizer = FakeListChatModel(responses=["- The user has order A-1042."])
    provider = SimpleNamespace(get_chat_model=lambda config: summarizer)  # noqa: ARG005 - one model for all
    return Scripted(), {"mode": "llm", "model_provider": provider}


async def serve() -> None:
    """A pod: reads its settings, then one question a line; answers one line each."""
    settings = json.loads(sys.stdin.readline())
    async with connect(settings["url"]) as redis:
        pod = Pod(redis, langchain=settings["langchain"])
        for line in iter(sys.stdin.readline, ""):
            print(json.dumps(await pod.turn(SCOPE, **json.loads(line))), flush=True)


async def started(settings: dict) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    pod = await asyncio.create_subprocess_exec(sys.executable, __file__, "--serve", stdin=pipe, stdout=pipe)
    pod.stdin.write(json.dumps(settings).encode() + b"\n")  # not as an argument: a URL may hold a password
    return pod


async def main(url: str, *, langchain: bool) -> None:
    async with connect(url) as redis:
        pods = {name: await started({"url": redis.url, "langchain": langchain}) for name in "AB"}
        for number, question in enumerate(QUESTIONS, 1):
            name = "AB"[(number - 1) % 2]
            pods[name].stdin.write(json.dumps({"number": number, "question": question}).encode() + b"\n")
            told = json.loads(await pods[name].stdout.readline())
            print(f"turn {number}, pod {name} (process {told['pid']})")
            print(f"  user: {question}")
            print(f"  assistant: {told['answer']}{' (with a summary)' if told['summary'] else ''}")
            for stage, outcome in told["stages"].items():
                print(f"  {stage}: {outcome}")
        for pod in pods.values():
            pod.stdin.close()
            await pod.wait()
        for node in await StreamGraphStore(redis).query_nodes(SCOPE, "semantic"):
            print(f"known for good, {node.properties.get('record_layer', 'semantic')}: {node.label}")


if __name__ == "__main__":
    options = sys.argv[1:]
    if options == ["--serve"]:
        asyncio.run(serve())
    else:
        given = [option for option in options if not option.startswith("--")]
        asyncio.run(main(given[0] if given else "embedded://", langchain="--langchain" in options))
