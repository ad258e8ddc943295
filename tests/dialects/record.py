"""Records what a program exports, one OTLP request a line, as the Collector's file exporter does.

    python -m tests.dialects.record tests/dialects/nemo_rl.jsonl -- python emitter.py

The program gets an endpoint and nothing else.
"""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from tests.support.otlp_sink import Sink, serve

_IDS = frozenset({"traceId", "spanId", "parentSpanId"})
"""In hexadecimal digits in OTLP, unlike other bytes."""


def record(target: Path, command: Sequence[str]) -> int:
    """Run ``command`` and write its exports to ``target``. Returns its exit status."""
    with serve(Sink()) as sink:
        environment = os.environ | {
            "OTEL_EXPORTER_OTLP_ENDPOINT": sink.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        }
        status = subprocess.run(command, env=environment, check=False).returncode
        target.write_text("".join(f"{line}\n" for line in _lines(sink)), encoding="utf-8")
    return status


def _lines(sink: Sink) -> Iterator[str]:
    requests: dict[str, Iterator[Message]] = {
        "/v1/metrics": iter(sink.metrics),
        "/v1/traces": iter(sink.traces),
        "/v1/logs": iter(sink.logs),
    }
    for path in sink.order:
        yield json.dumps(as_otlp(MessageToDict(next(requests[path]))), separators=(",", ":"))


def as_otlp(value: Any) -> Any:
    """Return a message, as protobuf's JSON, in OTLP's."""
    if isinstance(value, dict):
        return {
            key: base64.b64decode(one).hex() if key in _IDS else as_otlp(one)
            for key, one in value.items()
        }
    return [as_otlp(one) for one in value] if isinstance(value, list) else value


if __name__ == "__main__":
    target, separator, *command = sys.argv[1:]
    if separator != "--" or not command:
        sys.exit(__doc__)
    sys.exit(record(Path(target), command))
