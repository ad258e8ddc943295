"""The workers of a run in words: who is there, who is missing, who has failed."""

from collections.abc import Iterator, Mapping

from otel_rl.records import RoleStanding

__all__ = ["in_words", "troubles"]


def in_words(roles: Mapping[str, RoleStanding]) -> Iterator[str]:
    """One phrase for each role that somebody is expected in, or has failed in."""
    for role, standing in sorted(roles.items()):
        if standing.expected or standing.failures or standing.silent:
            there = f"{standing.alive} of {standing.expected} alive"
            yield ", ".join([f"{role}: {there}", *_failures(standing)])


def troubles(roles: Mapping[str, RoleStanding]) -> Iterator[str]:
    """One phrase for each role of which not everything was as it should be."""
    for role, standing in sorted(roles.items()):
        missing = standing.expected - standing.alive
        # Not "of N": those that have said goodbye are expected no more, however many they were.
        words = [f"{missing} expected and not there"] if missing > 0 else []
        words += _failures(standing)
        if words:
            yield f"{role}: {', '.join(words)}"


def _failures(standing: RoleStanding) -> Iterator[str]:
    if standing.failures:
        yield f"{standing.failures} failed"
    if standing.recovery_s is not None:
        yield f"replaced after {standing.recovery_s:.1f} s"
    if standing.silent:
        yield (
            f"{standing.silent} ended without a goodbye; up to an export interval (1 s unless set) "
            "of metrics may be missing"
        )
