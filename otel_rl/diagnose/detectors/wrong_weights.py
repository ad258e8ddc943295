"""Detector of servers that loaded other weights than were pushed, by their digests."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from otel_rl.diagnose.history.run_history import RunHistory, Track
from otel_rl.diagnose.result import MOST_EVIDENCE, Cause, Evidence, Kind, listed
from otel_rl.diagnose.thresholds import A_FEW

_CHECKS: Final = re.compile(
    r"^(?P<role>.+?)/policy/weights/checked/(?P<state>equal|stale|different)$"
)

_FEWEST: Final = 2  # checks: one push may overtake another (ADR 27)


class _Checks(NamedTuple):
    """A worker's checks: steps of the equal ones, and (step, number) of the others."""

    equal: list[int]
    stale: list[tuple[int, float]]
    different: list[tuple[int, float]]


def wrong_weights(history: RunHistory) -> Iterator[Cause]:
    """Find workers that compute with other weights than they were sent."""
    by_role: dict[str, list[tuple[str, int, str]]] = {}
    checks = _checks(history)
    for (role, worker), of in checks.items():
        last_equal = max(of.equal, default=-1)
        # In the step of a check that was equal, the others may have been before it.
        for state, found in (("stale", of.stale), ("different", of.different)):
            later = [(step, n) for step, n in found if step > last_equal]
            if sum(n for _, n in later) >= _FEWEST:
                by_role.setdefault(role, []).append((worker, later[0][0], state))
    for role, of_role in by_role.items():
        names = sorted({worker for worker, _, _ in of_role})
        peers = [worker for other, worker in checks if other == role]
        since = min(step for _, step, _ in of_role)
        is_stale = all(state == "stale" for _, _, state in of_role)
        what = (
            "those of an earlier push: a load that failed or was skipped"
            if is_stale
            else "none that it was sent: a wrong shard, another layout or a damaged transfer"
        )
        yield Cause(
            Kind.WRONG_WEIGHTS,
            f"{listed(names)} {'says' if len(names) == 1 else 'say'} to serve new weights, and by "
            f"their digests the weights are {what}, since step {since}",
            role=role,
            worker=names[0] if len(names) == 1 and len(peers) > 1 else None,
            since=since,
            strength=1.0,
            evidence=[
                Evidence(
                    f"checks of weights that were {state}",
                    f"{role}/policy/weights/checked/{state}",
                    worker,
                    0.0,
                    sum(n for at, n in getattr(checks[role, worker], state) if at >= step),
                )
                for worker, step, state in of_role[:MOST_EVIDENCE]
            ],
        )


def proved_equal(history: RunHistory) -> bool | None:
    """Return whether the last checks of all servers were equal; None if too few were made."""
    checks = _checks(history)
    if any(
        step > max(of.equal, default=-1)
        for of in checks.values()
        for step, _ in (*of.stale, *of.different)
    ):
        return False
    return True if sum(len(of.equal) for of in checks.values()) >= A_FEW else None


def _checks(history: RunHistory) -> dict[tuple[str, str], _Checks]:
    found: dict[tuple[str, str], _Checks] = {}
    for key, of in history.workers.items():
        if match := _CHECKS.match(key):
            for worker, track in of.items():
                _add(found, match["role"], worker, match["state"], track)
    return found


def _add(
    found: dict[tuple[str, str], _Checks], role: str, worker: str, state: str, track: Track
) -> None:
    checks = found.setdefault((role, worker), _Checks([], [], []))
    told = [(s, n) for s, n in track.pairs() if n > 0]
    if state == "equal":
        checks.equal.extend(step for step, _ in told)
    else:
        (checks.stale if state == "stale" else checks.different).extend(told)
