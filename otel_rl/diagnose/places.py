"""Adds the places of the workers of causes, and names: host, process, stack, keys.

A stack may show that a worker does not hang: saves and compilations within other work take long.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from otel_rl.diagnose.detectors.stalls import SAVE_S
from otel_rl.diagnose.history.records import OWN_STEP
from otel_rl.diagnose.result import Cause, Diagnosis, Kind, Verdict

_MOST_FRAMES: Final = 5

# Causes of a worker that does not go on: where it stands explains them.
_STANDING: Final = frozenset({Kind.STALL})

# Calls that are in the stack while it happens, and not while what was saved or compiled runs: the
# checkpoints of torch.utils save no file, and frames of torch._dynamo are around compiled code.
_RARE_WORK: Final = (
    (
        "saves",
        re.compile(
            r"torch/serialization\.py:\d+ in (_legacy_|_)?save|torch/distributed/checkpoint/"
            r"|safetensors/\w+\.py:\d+ in save|orbax/checkpoint/"
            r"| in (\S+\.)?_?save(_\w*)?(checkpoint|ckpt|model|state|weights|pretrained)\w*$"
            r"| in (\S+\.)?save(_file)?$"
        ),
    ),
    (
        "compiles",
        re.compile(
            r"torch/_dynamo/convert_frame\.py|torch/_inductor/(graph|scheduler|async_compile)\.py"
            r"|torch/_inductor/codegen/|torch/utils/cpp_extension\.py|triton/compiler/"
            r"|jax/_src/compiler\.py"
        ),
    ),
)


class Place(NamedTuple):
    """Place of a worker.

    Attributes:
        host: Host of the worker; None if it is unknown.
        pid: Process id on the host; None if it is unknown.
        stack: Calls of a phase that takes too long, the innermost first; empty if the phase has
            ended.
        collective: Collective in which the worker waits, in words; empty without one.
        step: Step of the stack; None without one.
    """

    host: str | None = None
    pid: int | None = None
    stack: Sequence[str] = ()
    collective: str = ""
    step: int | None = None


def with_places(report: Diagnosis, places: Mapping[str, Place]) -> Diagnosis:
    """Return the report with the places of its workers.

    Args:
        places: Places by ``<role>/<index>``.
    """
    busy = {
        n: words for n, one in enumerate(report.causes) if (words := _at_rare_work(one, places))
    }
    causes = [_placed(one, places) for n, one in enumerate(report.causes) if n not in busy]
    verdict = report.verdict
    if busy and not causes:
        is_beyond = any(one.is_beyond for one in report.observations)
        normal = Verdict.BEYOND if is_beyond else Verdict.HEALTHY
        no_clear = Verdict.NO_CLEAR_CAUSE if report.symptoms else normal
        verdict = Verdict.CANNOT_TELL if report.doubts else no_clear
    changes = [*report.changes, *busy.values()]
    return replace(report, causes=causes, verdict=verdict, changes=changes)


def with_names(report: Diagnosis, in_words: Callable[[str], str]) -> Diagnosis:
    """Return the report with the program's names of keys.

    Args:
        in_words: Returns a text in which the keys of rows are replaced by these names.
    """
    return replace(
        report,
        causes=[
            replace(
                cause,
                words=in_words(cause.words),
                evidence=[
                    replace(one, what=in_words(one.what), key=one.key and in_words(one.key))
                    for one in cause.evidence
                ],
            )
            for cause in report.causes
        ],
        observations=[replace(one, words=in_words(one.words)) for one in report.observations],
        symptoms=[*map(in_words, report.symptoms)],
        changes=[*map(in_words, report.changes)],
    )


def _at_rare_work(cause: Cause, places: Mapping[str, Place]) -> str:
    """Return in words that a worker saves or compiles, by its stack; empty if it hangs.

    A worker that takes longer than the first save may take hangs in it.
    """
    place = places.get(cause.worker or "")
    if cause.kind not in _STANDING or place is None or not _is_of_now(cause, place):
        return ""
    ages_s = [
        one.after
        for one in cause.evidence
        if one.worker == cause.worker and one.unit == "s" and one.after is not None
    ]
    if not ages_s or max(ages_s) >= SAVE_S:
        return ""
    for frame in place.stack:
        for does, calls in _RARE_WORK:
            if calls.search(frame):
                where = "" if cause.phase is None else f" in {cause.phase}"
                return f"{cause.worker} {does}{where} for {max(ages_s):.3g} s, at {frame}"
    return ""


def _is_of_now(cause: Cause, place: Place) -> bool:
    """Return whether the worker stands, and has not gone on since its stack was reported."""
    if cause.until is not None:
        return False
    if place.step is None or cause.since is None:
        return True
    # Others may be further than the worker.
    own = [one.after for one in cause.evidence if one.key == OWN_STEP and one.after is not None]
    return place.step >= min([cause.since, *own])


def _placed(cause: Cause, places: Mapping[str, Place]) -> Cause:
    place = places.get(cause.worker or "")
    if place is None:
        return cause
    pid = cause.pid if place.pid is None else place.pid
    cause = replace(cause, host=place.host or cause.host, pid=pid)
    if cause.kind not in _STANDING or not place.stack:
        return cause
    if not _is_of_now(cause, place):
        return cause
    words = f"{cause.words}, at {place.stack[0]}"
    if place.collective:
        words += f"; {place.collective}"
    return replace(cause, words=words, stack=place.stack[:_MOST_FRAMES])
