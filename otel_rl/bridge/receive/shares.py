"""Which part of each bound a token has, so that what one uses up does not refuse another."""

from collections.abc import Mapping

from otel_rl.bridge.receive.tokens import AuthSettings, Grant
from otel_rl.records import ExperimentKey

__all__ = ["NOBODY", "Shares", "token_of"]

NOBODY = ""
"""Stands for the token where none is asked for."""


def token_of(grant: Grant | None) -> str:
    """The name of the token that a request came with."""
    return NOBODY if grant is None else grant.name


class Shares:
    """The parts, which do not change. Any thread may call any method.

    Args:
        settings: Names the tokens. Those without a ``share`` have equal parts of what is left.
    """

    def __init__(self, settings: AuthSettings) -> None:
        self._grants = [Grant(token.name, token.experiments) for token in settings.tokens]
        names = list(dict.fromkeys(token.name for token in settings.tokens))
        given = {token.name: token.share for token in settings.tokens if token.share is not None}
        others = [name for name in names if name not in given]
        left = 1.0 - sum(given.values())
        self._parts: Mapping[str, float] = {
            **given,
            **{name: left / len(others) for name in others},
        }

    @property
    def are_needed(self) -> bool:
        """Whether there are several tokens."""
        return len(self._parts) > 1

    def of(self, token: str, bound: int) -> int:
        """What a token has of a bound, at least 1; all of it where there are no several."""
        if not self.are_needed:
            return bound
        return max(1, int(self._parts.get(token, 0.0) * bound))

    def owner_of(self, key: ExperimentKey) -> str:
        """Whose an experiment is that was there before anybody could see who began it.

        That of the longest pattern, and of the first one among equals.
        """
        owner, best = NOBODY, -1
        for grant in self._grants:
            for pattern in grant.experiments:
                if len(pattern) > best and Grant("", [pattern]).problem(key) is None:
                    owner, best = grant.name, len(pattern)
        return owner
