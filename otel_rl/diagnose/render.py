"""Renders a diagnosis as text and as JSON."""

import math
from collections.abc import Iterator, Mapping

from otel_rl.diagnose.result import Cause, Diagnosis, Evidence, Verdict
from otel_rl.redaction import printable

__all__ = ["as_json", "in_words", "summary"]


def summary(report: Diagnosis) -> str:
    """Return the diagnosis as one sentence."""
    if report.causes:
        return report.causes[0].words
    if report.symptoms:
        return f"{report.symptoms[0]}; no clear cause"
    if report.verdict is Verdict.CANNOT_TELL:
        return f"{report.verdict}: {'; '.join(report.doubts)}"
    return "no fault found"


def in_words(report: Diagnosis, *, trace_url: str = "") -> Iterator[str]:
    """Yield the lines of a report, the first cause first.

    Args:
        report: The diagnosis.
        trace_url: URL of a trace, with ``{trace_id}`` in it; empty for ids alone.
    """
    doubts = f": {'; '.join(report.doubts)}" if report.verdict is Verdict.CANNOT_TELL else ""
    yield f"steps {report.first} to {report.last}: {report.verdict}{doubts}"
    for symptom in report.symptoms:
        yield f"  {symptom}"
    for change in report.changes:
        yield f"  no fault: {change}"
    if report.bound is not None:
        role, phase, share = report.bound
        yield f"  most of the time of a step: {role}/{phase}, {share:.0%}"
    for failure in report.failures:
        yield f"  {failure}"
    for place, cause in enumerate(report.causes, 1):
        yield f"{place}. {cause.kind}: {cause.words}"
        for evidence in cause.evidence:
            yield f"     {_evidence(evidence)}"
            for trace in evidence.traces:
                yield f"       trace {trace_url.replace('{trace_id}', trace) or trace}"
    if report.verdict is Verdict.NO_CLEAR_CAUSE:
        yield "No phase, worker or metric stands out enough to be called the cause."
    if report.seen and not report.causes:
        yield f"  seen: {report.seen}"


def as_json(report: Diagnosis) -> Mapping[str, object]:
    """Return the report in plain values; NaN and infinities are null."""
    bound = report.bound
    return {
        "steps": [report.first, report.last],
        "verdict": report.verdict.value,
        "causes": [_cause(cause) for cause in report.causes],
        "symptoms": [printable(symptom) for symptom in report.symptoms],
        "bound": None
        if bound is None
        else {"role": bound[0], "phase": printable(bound[1]), "share": round(bound[2], 4)},
        "failures": [printable(failure) for failure in report.failures],
        "seen": printable(report.seen),
        "doubts": [printable(doubt) for doubt in report.doubts],
        "words": printable(summary(report)),
    }


def _cause(cause: Cause) -> Mapping[str, object]:
    return {
        "kind": cause.kind.value,
        "role": cause.role,
        "worker": _printable(cause.worker),
        "phase": _printable(cause.phase),
        "since_step": cause.since,
        "until_step": cause.until,
        "score": round(cause.score, 3),
        "words": printable(cause.words),
        "evidence": [
            {
                "what": printable(one.what),
                "key": _printable(one.key),
                "worker": _printable(one.worker),
                "before": _number(one.before),
                "after": _number(one.after),
                "unit": one.unit,
                "traces": list(one.traces),
            }
            for one in cause.evidence
        ],
    }


def _evidence(evidence: Evidence) -> str:
    of = f" of {evidence.worker}" if evidence.worker else ""
    key = f" ({evidence.key})" if evidence.key else ""
    if evidence.before is None or evidence.after is None:
        return f"{evidence.what}{of}{key}"
    unit = f" {evidence.unit}" if evidence.unit else ""
    return f"{evidence.what}{of}: {evidence.before:.3g} -> {evidence.after:.3g}{unit}{key}"


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value


def _printable(text: str | None) -> str | None:
    """Make a sender's text printable: printed values of JSON are not escaped."""
    return None if text is None else printable(text)
