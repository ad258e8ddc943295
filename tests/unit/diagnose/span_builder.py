"""Spans in short, for tests of a diagnosis."""

from collections.abc import Iterable

from otel_rl.records import SpanRecord


def span(
    name: str,
    start: int,
    end: int,
    *,
    worker: str = "trainer-0",
    within: str | None = None,
    uses: Iterable[str] = (),
    waits: bool = False,
    phase_class: str = "",
    step: int | None = None,
    host: str = "",
) -> SpanRecord:
    """A span whose id is its name, whose phase is the name before ``#``, and role the worker's."""
    return SpanRecord(
        span_id=name.encode(),
        parent_id=None if within is None else within.encode(),
        links=tuple(link.encode() for link in uses),
        role=worker.partition("-")[0],
        worker=worker,
        host=host or worker,
        start_ns=start,
        end_ns=end,
        name=name,
        phase="" if name.startswith("step") else name.partition("#")[0],
        phase_class=phase_class or ("wait" if waits else "compute"),
        step=step,
    )
