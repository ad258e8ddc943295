"""What otel_rl says of a written case: the bridge's real intake reads its OTLP/JSON back."""

import json
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from exams.first.intake import Intake
from exams.first.judge import Look
from exams.first.requests import Arrived
from otel_rl.bridge.receive.otlp_json import parse_json
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.signals import Signal

_SIGNALS = {
    "resourceMetrics": Signal.METRICS,
    "resourceSpans": Signal.TRACES,
    "resourceLogs": Signal.LOGS,
}
_MOST_OBJECTS = 10_000_000


def answered(out: Path, case: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the answer to a case of ``cases.jsonl``, diagnosed once it is over."""
    place = out / "otlp" / case["case"]
    intake = Intake()
    with place.with_suffix(".jsonl").open("rb") as lines:
        times = map(int, place.with_suffix(".arrivals").read_text(encoding="ascii").split())
        for at_ns, some in groupby(zip(times, lines, strict=True), key=lambda one: one[0]):
            intake.take(at_ns, [_arrived(at_ns, line) for _, line in some])
    until_ns = int(case["observed_until_ns"])
    intake.take(until_ns, ())
    history = RunHistory(intake.records)
    silent_s = max(0.0, (until_ns - history.newest_ns) / 1e9)
    found = Look.of(0.0, diagnose(history, passed=True, silent_s=silent_s), is_last=True)
    causes = [
        {"kind": one.kind, "role": one.role, "worker": one.worker, "step": one.since}
        for one in found.causes
    ]
    return {"case": case["case"], "causes": causes}


def _arrived(at_ns: int, line: bytes) -> Arrived:
    (name,) = json.loads(line).keys()
    message = parse_json(_SIGNALS[name], line, max_objects=_MOST_OBJECTS)
    return Arrived(at_ns, _SIGNALS[name], message.SerializeToString())
