"""Starts otel_rl in the processes that use it. Remaining telemetry is delivered at exit."""

from collections.abc import Mapping, Sequence

import otel_rl
from otel_rl.demo.metrics.machine import observe_process

__all__ = ["report_as"]


def report_as(
    role: str,
    *,
    index: int,
    count: int,
    config: Mapping[str, object] | None = None,
    tags: Sequence[str] = (),
) -> None:
    """Report from now on.

    There is no ``shutdown``: at exit the worker reports whether an error ended the process.

    Args:
        role: Of the process.
        index: Index among the processes of the role.
        count: Number of processes of the role.
        config: Hyper-parameters of the run; one process reports them.
        tags: Of the run.
    """
    otel_rl.init(role=role, index=index, count=count, config=config, tags=tags)
    observe_process()
