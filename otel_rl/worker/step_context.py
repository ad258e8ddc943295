"""The training step in the OpenTelemetry Context, for everything recorded inside a step.

The step in the Context stands for the context-scoped attributes of OTEP 4931, which no SDK has yet
(ADR 26). A measurement keeps its context and its time, so that its step is looked up on the
exporter's thread.
"""

import os
import sys
from time import time_ns
from typing import Final

from opentelemetry.context import Context, create_key, get_current, get_value, set_value

_KEY: Final = create_key("otel_rl.step")

OPEN: Final = sys.maxsize
"""End of a block that has not ended."""

_forks = 0
"""Forks before this process: blocks of its parent are not its own."""


class StepScope:
    """Block of a step. Code that outlives the block, such as a task, is then in the outer step."""

    __slots__ = ("ended_ns", "forks", "number", "outer")

    def __init__(self, number: int) -> None:
        self.number = number
        self.outer = _reached_at(OPEN, scope_in(get_current()))
        if self.outer is not None:  # a chain of tasks, each begun in a step, keeps no ended steps
            self.outer.outer = _reached_at(OPEN, self.outer.outer)
        self.forks = _forks
        self.ended_ns = OPEN

    def number_at(self, at_ns: int) -> int | None:
        """Return the step to which this context belongs at a time; None after all its blocks."""
        scope = _reached_at(at_ns, self)
        return None if scope is None else scope.number


def _reached_at(at_ns: int, scope: StepScope | None) -> StepScope | None:
    """Return the innermost block of this process that had not ended before a time."""
    while scope is not None and (at_ns > scope.ended_ns or scope.forks != _forks):
        scope = scope.outer
    return scope


def in_step(context: Context, scope: StepScope) -> Context:
    return set_value(_KEY, scope, context)


def out_of_steps() -> Context | None:
    """Return the current context without its step; None if it has none."""
    context = get_current()
    return None if scope_in(context) is None else set_value(_KEY, None, context)


def scope_in(context: Context | None) -> StepScope | None:
    """Return the innermost block, ended or not, in which ``context`` was made."""
    scope = get_value(_KEY, context) if context else None
    return scope if isinstance(scope, StepScope) else None


def current_step() -> int | None:
    """Return the step of the calling code, or None."""
    scope = scope_in(get_current())
    return None if scope is None else scope.number_at(time_ns())


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_after_fork_in_child)
