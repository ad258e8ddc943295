"""``otel_rl.lineage.rollout``: one rollout by its id, while it runs and when it has ended."""

import os
from collections.abc import Mapping
from contextvars import Token
from time import time_ns
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from opentelemetry.trace import get_current_span

from otel_rl.semconv.outcomes import Outcome
from otel_rl.worker import session
from otel_rl.worker.api.experiment import log_samples
from otel_rl.worker.api.learning import outcome_word
from otel_rl.worker.drops import DropReason
from otel_rl.worker.otlp.anyvalue import Plain, cut, label
from otel_rl.worker.phases import flows
from otel_rl.worker.rollouts import CURRENT, MAX_OPEN, OPEN, OpenRollout
from otel_rl.worker.step_context import current_step
from otel_rl.worker.tensors import as_step

_MAX_ID_CHARS: Final = 128
_MAX_NAME_CHARS: Final = 64
_MAX_BEGINNING_CHARS: Final = 200
"""Of the prompt, in the list of what runs. The end of the rollout has the whole prompt."""

_NS_PER_S: Final = 1e9

# By name: the errors of asyncio and of frameworks are not loaded for it.
_CANCELLED: Final = frozenset({"CancelledError", "KeyboardInterrupt", "GeneratorExit"})


class rollout:  # noqa: N801  # reads as a statement: with rollout(id="17")
    """One rollout, as a ``with`` or ``async with`` block. Never raises, never waits.

    The page shows the rollout from its begin on, with its stage, age and last progress. Each
    ``otel_rl.phase`` in the block, also in threads and tasks that have its context, is its stage.
    At the end the rollout is a sample, as one of ``log_samples``, under its id and attempt: whoever
    logs a sample with the same ``id`` and ``attempt`` later, such as a trainer its ``advantage``
    and ``outcome``, adds to it. Metrics of rewards are those of ``score``, which this does not
    replace.

    An exception that leaves the block ends the rollout as ``timeout``, ``cancelled`` or else
    ``environment_failed``, with the type of the exception as reason.

    Args:
        id: Id of the rollout in the run; default a random one.
        attempt: Number of the try, from 1.
        prompt: Text, or messages of a chat.
        environment: Name of the environment or task.
        group: Name of the rollouts that are compared with each other, such as the samples of one
            prompt.
        step: The training step; default that of the ``step`` block around it.
    """

    __slots__ = ("_ended", "_entered", "_pid", "_prompt", "_token", "attempt", "id")

    def __init__(
        self,
        id: object = None,  # noqa: A002  # the word of the field
        attempt: int = 1,
        *,
        prompt: object = None,
        environment: str | None = None,
        group: object = None,
        step: int | None = None,
    ) -> None:
        self.id = uuid4().hex if id is None else label(id, _MAX_ID_CHARS)
        """Identifies the rollout in the run, together with ``attempt``."""
        number = as_step(attempt)
        self.attempt = 1 if number is None else number
        """Number of the try."""
        self._prompt = prompt
        fields: dict[str, Plain] = {"id": self.id, "attempt": self.attempt}
        for name, value in (("environment", environment), ("group", group)):
            if value is not None:
                fields[name] = label(value, _MAX_ID_CHARS)
        at = current_step() if step is None else as_step(step)
        self._entered = OpenRollout(fields, at, "")
        self._token: Token[OpenRollout | None] | None = None
        self._pid = self._ended = 0

    def begin(self) -> Self:
        """Begin the rollout without a block: ``end`` ends it, and no phase is its stage.

        This is for programs that begin a rollout in one callback and end it in another.
        """
        with session.GUARD:
            entered, self._pid = self._entered, os.getpid()
            beginning = _text_of_prompt(self._prompt)
            if beginning:
                entered.fields["prompt"] = cut(beginning, _MAX_BEGINNING_CHARS)
            entered.begun_ns = entered.progress_ns = time_ns()
            if not OPEN.add(entered):
                session.GUARD.drop(
                    DropReason.TOO_MANY_SAMPLES,
                    f"More than {MAX_OPEN} rollouts of this process are open; further ones are "
                    "shown when they have ended.",
                )
        return self

    def __enter__(self) -> Self:
        self.begin()
        with session.GUARD:
            self._entered.stage = flows.innermost()
            self._token = CURRENT.set(self._entered)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with session.GUARD:
            token, self._token = self._token, None
            if token is not None and CURRENT.get() is self._entered:
                try:
                    CURRENT.reset(token)
                except ValueError:  # another task closes it: its context has a copy
                    CURRENT.set(None)
        if error is None:
            self.end()
        else:
            self.end(outcome=_outcome_of(error), reason=type(error).__name__)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def stage(self, name: str) -> None:
        """Begin a stage that is not a phase, such as a turn.

        Repeating the name is progress, too.
        """
        with session.GUARD:
            self._entered.moved(label(name, _MAX_NAME_CHARS))

    def end(
        self,
        *,
        reward: object = None,
        advantage: object = None,
        outcome: str | None = None,
        reason: str | None = None,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """End the rollout; a second end, or that of a forked child, does nothing.

        Args:
            reward: A number, or a tensor of one element.
            advantage: A number, or a tensor of one element.
            outcome: One of ``otel_rl.semconv.outcomes.Outcome``, as text; None if it is not decided
                yet.
            reason: Why the rollout ended so, in a few words.
            fields: Further fields of the sample, as for ``log_samples``: ``completion``,
                ``messages``.
        """
        with session.GUARD:
            # _pid is that of the process in which it began; a forked child only inherits it.
            if self._ended or (self._pid and self._pid != os.getpid()):
                return
            self._ended = 1
            entered = self._entered
            OPEN.remove(entered)
            sample: dict[str, object] = dict(entered.fields)
            if self._prompt is not None:
                sample["prompt"] = self._prompt
            more: object = fields
            if isinstance(more, Mapping):
                sample.update(more)
            elif more is not None:
                session.GUARD.drop(
                    DropReason.BAD_SAMPLE,
                    "lineage.rollout: fields of an end must be a mapping "
                    f"(got {type(more).__name__}). They are dropped.",
                )
            given = {
                "reward": reward,
                "advantage": advantage,
                "outcome": outcome_word(outcome, "lineage.rollout"),
                "reason": reason,
            }
            sample.update((name, value) for name, value in given.items() if value is not None)
            sample["duration_s"] = round((time_ns() - entered.begun_ns) / _NS_PER_S, 3)
            context = None if entered.span is None else entered.span.get_span_context()
            if context is not None and not get_current_span().get_span_context().is_valid:
                sample["trace_id"] = f"{context.trace_id:032x}"
            log_samples([sample], step=entered.step)


def _text_of_prompt(prompt: object) -> str:
    """Return the text of a prompt: of messages the last one; empty for anything else."""
    if isinstance(prompt, list | tuple) and prompt and isinstance(prompt[-1], Mapping):
        prompt = prompt[-1].get("content")
    return prompt if isinstance(prompt, str) else ""


def _outcome_of(error: BaseException) -> Outcome:
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _CANCELLED:
        return Outcome.CANCELLED
    return Outcome.TIMEOUT if "TimeoutError" in names else Outcome.ENVIRONMENT_FAILED
