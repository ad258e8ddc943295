"""Recorded exports, as if they were made now."""

import re
import time
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent

_TIME = re.compile(r'("\w*[tT]imeUnixNano":")(\d+)"')


def requests(name: str, begun_ns: int | None = None) -> Sequence[tuple[str, bytes]]:
    """Return path and body, in JSON, of each request of a recording.

    Args:
        name: Of the file, without its suffix.
        begun_ns: Time of its first span or point; by default so that it has just ended.
    """
    recorded = (HERE / f"{name}.jsonl").read_text(encoding="utf-8")
    times_ns = [int(found) for _, found in _TIME.findall(recorded)]
    ahead_ns = begun_ns - min(times_ns) if begun_ns else time.time_ns() - max(times_ns)
    moved = _TIME.sub(lambda one: f'{one[1]}{int(one[2]) + ahead_ns}"', recorded)
    return [(_path(line), line.encode()) for line in moved.splitlines()]


def _path(line: str) -> str:
    return "/v1/traces" if line.startswith('{"resourceSpans"') else "/v1/metrics"
