"""A whole site: agent -> gateway -> bridge -> run, and gateway -> Jaeger. All of it is real."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from otel_rl.run_id import run_id
from tests.lab.running import Bridge, Collector, Jaeger, Running

History = Sequence[Mapping[str, float]]

_NOBODY = "http://127.0.0.1:1"

# Pauses that are meant for the machines of others, shortened for tests.
QUICK = """
exporters:
  {exporter}:
    retry_on_failure: {{initial_interval: 200ms, max_interval: 500ms}}
"""

BRIDGE = """
stop_timeout = 40

[rows]
per_worker = true
window = 0.5
wait = 2.0
worker_timeout = 2.0
start_wait = 0.1
"""


class Site:
    """Everything between a worker and its run, started inside its context.

    Args:
        directory: Of all its files.
        agent: Variables of the agent.
        gateway: Variables of the gateway.
        overlay: Changes to the file of the agent and to that of the gateway; ``{exporter}`` stands
            for where it sends its metrics.
    """

    def __init__(
        self,
        directory: Path,
        *,
        agent: Mapping[str, str] | None = None,
        gateway: Mapping[str, str] | None = None,
        overlay: str = QUICK,
    ) -> None:
        self.bridge = Bridge(directory / "bridge", BRIDGE)
        self.jaeger = Jaeger(directory / "jaeger")
        to_jaeger = {"OTEL_RL_JAEGER_URL": self.jaeger.url, **(gateway or {})}
        self.gateway = gateway_of(self.bridge, directory / "gateway", to_jaeger, overlay)
        self.agent = Collector(
            "agent",
            directory / "agent",
            {"OTEL_RL_GATEWAY_URL": self.gateway.url, **(agent or {})},
            overlay.format(exporter="otlp_http/gateway"),
        )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            # All at once, then each in turn until it can be used.
            for part in self.parts:
                stack.callback(part.kill)
                part.start(waits=False)
            for part in self.parts:
                part.wait()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def parts(self) -> Sequence[Running]:
        """All of it, from the end of the way to its beginning."""
        return (self.bridge, self.jaeger, self.gateway, self.agent)

    def history(self, experiment: str, trial: str) -> History:
        """The rows of a run, under the names that W&B gives to number and time; [] if none."""
        return history_of(self.bridge.directory / "data" / f"{run_id(experiment, trial)}.jsonl")


def gateway_of(
    bridge: Bridge,
    directory: Path,
    settings: Mapping[str, str] | None = None,
    overlay: str = QUICK,
) -> Collector:
    """The gateway in front of a bridge; without Jaeger unless ``settings`` say where it is."""
    return Collector(
        "gateway",
        directory,
        {"OTEL_RL_BRIDGE_URL": bridge.url, "OTEL_RL_JAEGER_URL": _NOBODY, **(settings or {})},
        overlay.format(exporter="otlp_http/bridge"),
    )


def history_of(path: Path) -> History:
    """The rows of a file of JSON lines; [] if there is none."""
    return read_history(path.read_text()) if path.exists() else []


def read_history(text: str) -> History:
    """The rows of JSON lines, under the names that W&B gives to number and time."""
    complete = text.rpartition("\n")[0]  # the last line may be half-written
    rows = [json.loads(line) for line in complete.splitlines()]
    return [
        {
            **{key: float(value) for key, value in row["values"].items()},
            "step": row["step"],
            "_step": row["number"],
            "_timestamp": row["time_ns"] / 1e9,
        }
        for row in rows
    ]
