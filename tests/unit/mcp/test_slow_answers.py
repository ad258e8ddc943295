"""A long answer holds up no other, through a client of the official package."""

import asyncio
import threading
from pathlib import Path
from typing import Any

from mcp import Client

from otel_rl.bridge.config import BridgeSettings
from otel_rl.bridge.diagnosis.histories import MemoryBound
from otel_rl.mcp.answers import Answers
from otel_rl.mcp.tools import make_server

WAIT_S = 60.0


class SlowAnswers(Answers):
    """Diagnoses nothing before it is let."""

    begun = threading.Event()
    is_let = threading.Event()

    def diagnose(self, *_: Any, **__: Any) -> dict[str, Any]:
        self.begun.set()
        assert self.is_let.wait(WAIT_S)
        return {"verdict": "healthy"}

    def history(self, *_: Any) -> dict[str, Any]:
        return {"values": []}


def test_a_slow_diagnosis_holds_up_neither_pings_nor_other_tools(tmp_path: Path) -> None:
    server = make_server(lambda: SlowAnswers(BridgeSettings(data=tmp_path), MemoryBound(0)))

    async def talk() -> None:
        async with Client(server, mode="legacy") as client:
            slow = asyncio.create_task(client.call_tool("diagnose", {"run": "grpo"}))
            assert await asyncio.to_thread(SlowAnswers.begun.wait, WAIT_S)
            await client.session.send_ping()
            assert not (await client.call_tool("runs", {})).is_error
            for run in ("grpo", "other"):
                asked = {"run": run, "key": "loss"}
                assert not (await client.call_tool("history", asked)).is_error
            assert not slow.done()
            SlowAnswers.is_let.set()
            assert (await slow).structured_content == {"verdict": "healthy"}

    asyncio.run(asyncio.wait_for(talk(), WAIT_S))
