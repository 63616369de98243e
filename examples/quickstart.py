"""Two workers, one conversation. Needs `symfonic-redis[embedded]`; give a redis:// URL to use your own server."""

import asyncio
import sys

from symfonic_redis import MemoryEntry, StreamGraphStore, TenantScope, WorkingLayer, connect


async def main(url: str) -> None:
    scope = TenantScope.root("org", "acme").child("conversation", "c-123")
    async with connect(url) as redis:
        # Two layers stand for two pods here: they share nothing but the server.
        first, second = (WorkingLayer(redis, 4, StreamGraphStore(redis), working_graph_retention=500) for _ in "ab")
        for number in range(1, 7):
            pod = first if number % 2 else second
            turn = MemoryEntry.turn(scope, speaker="user", turn_id=f"t{number}", content=f"message {number}")
            receipt = await pod.push(scope, turn, idempotency_key=f"job-{number}")
            print(f"turn {number}: window {receipt.window_length}, evicted {receipt.evicted}")
        again = await second.push(scope, turn, idempotency_key="job-6")
        print(f"the last job, delivered again: duplicate={again.duplicate}")
        for entry in await first.get_context(scope):
            print(first.render_for_prompt(entry))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "embedded://"))
