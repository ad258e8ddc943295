"""Joins otel_rl, for the processes that use it. The end of the process delivers what is left."""

from collections.abc import Mapping, Sequence

import otel_rl
from otel_rl.demo.machine import observe_process

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

    There is no ``shutdown``: a process that ends by itself says whether an error has ended it.

    Args:
        role: Of the process.
        index: Place among the processes of the role.
        count: Number of processes of the role.
        config: Hyper-parameters of the run, for one process to say.
        tags: Of the run.
    """
    otel_rl.init(role=role, index=index, count=count, config=config, tags=tags)
    observe_process()
