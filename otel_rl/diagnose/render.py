"""Renders a diagnosis as text."""

from collections.abc import Iterator

from otel_rl.diagnose.advice import next_look
from otel_rl.diagnose.coverage import NO_PATH
from otel_rl.diagnose.result import Cause, Diagnosis, Evidence, Verdict
from otel_rl.plurals import many


def summary(report: Diagnosis) -> str:
    if report.causes:
        return report.causes[0].words
    if report.symptoms:
        return f"{report.symptoms[0]}; no clear cause"
    if report.verdict is Verdict.CANNOT_TELL:
        return f"{report.verdict}: {'; '.join(report.doubts)}"
    if report.verdict is Verdict.BEYOND:
        return report.observations[0].words
    return f"no fault found, but {report.unknown}" if report.unknown else "no fault found"


def in_words(report: Diagnosis, *, trace_url: str = "") -> Iterator[str]:
    """Yield the lines of a report, the first cause first.

    Args:
        trace_url: URL of a trace, with ``{trace_id}`` in it; empty for ids alone.
    """
    yield f"{_steps(report)}: {report.verdict}{_limits(report)}"
    for symptom in report.symptoms:
        yield f"  {symptom}"
    for change in report.changes:
        yield f"  no fault: {change}"
    if report.bound is not None:
        role, phase, share = report.bound
        partial = ""
        if report.partial:
            partial = f"; spans of {many(report.partial, 'step')} may be missing"
        yield f"  most of the time of a step: {role}/{phase}, {share:.0%}{partial}"
    for failure in report.failures:
        yield f"  {failure}"
    for place, cause in enumerate(report.causes, 1):
        yield f"{place}. {cause.kind}: {cause.words}"
        for evidence in cause.evidence:
            yield f"     {_evidence(evidence)}"
            for trace in evidence.traces:
                yield f"       trace {trace_url.replace('{trace_id}', trace) or trace}"
        yield from _place(cause)
        yield f"     next: {next_look(cause)}"
        yield from (f"     try: {words}" for words in cause.tries)
    for one in report.observations:
        yield f"{'beyond its reference' if one.is_beyond else 'observed'}: {one.kind}: {one.words}"
        yield f"     reference: {one.reference}"
        yield f"     doubt: {one.doubt}"
        yield from (f"     try: {words}" for words in one.tries)
    if report.verdict is Verdict.NO_CLEAR_CAUSE:
        yield "No phase, worker or metric stands out enough to be called the cause."
    if report.seen and (not report.causes or NO_PATH in report.seen):
        yield f"  seen: {report.seen}"


def _steps(report: Diagnosis) -> str:
    if report.first == report.last:
        return f"step {report.first}"
    return f"steps {report.first} to {report.last}"


def _limits(report: Diagnosis) -> str:
    """Return why a verdict may not be relied on."""
    if report.verdict is Verdict.CANNOT_TELL:
        return f": {'; '.join(report.doubts)}"
    return f", but {report.unknown}" if report.verdict is Verdict.HEALTHY and report.unknown else ""


def _place(cause: Cause) -> Iterator[str]:
    if cause.host is not None:
        pid = "" if cause.pid is None else f", process {cause.pid}"
        yield f"     on {cause.host}{pid}"
    for place, frame in enumerate(cause.stack):
        yield f"     {'where: ' if place == 0 else '       from '}{frame}"


def _evidence(evidence: Evidence) -> str:
    of = f" of {evidence.worker}" if evidence.worker else ""
    key = f" ({evidence.key})" if evidence.key else ""
    if evidence.after is None:
        return f"{evidence.what}{of}{key}"
    unit = f" {evidence.unit}" if evidence.unit else ""
    if evidence.before is None:
        return f"{evidence.what}{of}: {evidence.after:.3g}{unit}{key}"
    return f"{evidence.what}{of}: {evidence.before:.3g} -> {evidence.after:.3g}{unit}{key}"
