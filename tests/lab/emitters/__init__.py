"""Programs that measure with nothing but the stock SDK of their language, told what to measure.

All of them read the same operations, see ``go/main.go``.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.lab.programs import EMITTER_GO, EMITTER_NODE
from tests.process.commands import clean_environment

__all__ = ["COMMANDS", "Emitter", "Kind"]

COMMANDS: Mapping[str, list[str]] = {
    "python": [sys.executable, str(Path(__file__).parent / "python.py")],
    "go": [str(EMITTER_GO.path)],
    "node": [str(EMITTER_NODE.path)],
}
"""What starts each of them."""

_EXPORT_INTERVAL_MS = 5000  # Node's exporter waits no longer for an answer
_END_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A stock SDK, and how it is set.

    Attributes:
        language: One of ``COMMANDS``.
        temporality: ``cumulative``, which is everybody's default, or ``delta``.
        protocol: Of its exporter.
    """

    language: str
    temporality: str = "cumulative"
    protocol: str = "http/protobuf"

    def __str__(self) -> str:
        protocol = (
            "" if self.protocol == "http/protobuf" else f"-{self.protocol.rpartition('/')[2]}"
        )
        return f"{self.language}-{self.temporality}{protocol}"


class Emitter:
    """A process of a stock SDK that runs inside its context. It exports when it is told to.

    Args:
        kind: Of it.
        endpoint: Where it exports.
        resource: What it is.
        directory: Of its log.
        arguments: Of the program.
    """

    def __init__(
        self,
        kind: Kind,
        endpoint: str,
        resource: Mapping[str, str],
        directory: Path,
        *arguments: str,
    ) -> None:
        self._command = [*COMMANDS[kind.language], *arguments]
        self._log = directory / f"{kind}.log"
        self._environment = clean_environment(
            directory,
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
            OTEL_EXPORTER_OTLP_INSECURE="true",
            OTEL_EXPORTER_OTLP_PROTOCOL=kind.protocol,
            OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=kind.temporality,
            OTEL_METRIC_EXPORT_INTERVAL=str(_EXPORT_INTERVAL_MS),
            OTEL_RESOURCE_ATTRIBUTES=",".join(f"{key}={value}" for key, value in resource.items()),
        )
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def measure(self, op: str, name: str, *values: float, **attributes: object) -> None:
        """Let an instrument, which is made if need be, measure values."""
        texts = [json.dumps(value) for value in values]  # because JSON has no NaN
        self._do({"op": op, "name": name, "values": texts, "attributes": attributes})

    def flush(self) -> None:
        """Let it export now, and wait for it."""
        self._do({"op": "flush"})

    def line(self) -> str:
        """The next line that it writes."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, f"it has ended: {self.said()}"
        return line

    def end(self) -> None:
        """Let it export what it has, and end."""
        assert self._process is not None
        try:
            self._process.communicate(timeout=_END_TIMEOUT_S)
            assert self._process.returncode == 0, self.said()
        finally:
            self.kill()

    def kill(self) -> None:
        """End it with no warning."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def said(self) -> str:
        """What it has written to its log; an SDK that can export says nothing."""
        return self._log.read_text()

    def _do(self, operation: Mapping[str, object]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(operation) + "\n")
        self._process.stdin.flush()
        assert self.line() == "ok"
