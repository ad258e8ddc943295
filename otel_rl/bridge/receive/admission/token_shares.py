"""Share of each bound that a token has, so that one token cannot crowd out another."""

from collections.abc import Collection, Mapping

from otel_rl.bridge.receive.security.tokens import AuthSettings, Grant
from otel_rl.records import ExperimentKey

__all__ = ["NO_TOKEN", "TokenShares", "token_of"]

NO_TOKEN = ""
"""Stands for the token where none is required."""


def token_of(grant: Grant | None) -> str:
    """Return the name of the token that a request came with."""
    return NO_TOKEN if grant is None else grant.name


class TokenShares:
    """Shares, constant after construction. Any thread may call any method.

    Args:
        settings: The tokens. Those without a ``share`` divide the rest equally.
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
        """Return whether there are several tokens."""
        return len(self._parts) > 1

    @property
    def tokens(self) -> Collection[str]:
        """The names of all tokens."""
        return self._parts.keys()

    def of(self, token: str, bound: int) -> int:
        """Return the token's part of a bound, at least 1; all of it without several tokens."""
        if not self.are_needed:
            return bound
        return max(1, int(self._parts.get(token, 0.0) * bound))

    def owner_of(self, key: ExperimentKey) -> str:
        """Return the token of an experiment that was there before tokens were recorded.

        The longest matching pattern wins, the first one on a tie.
        """
        owner, best = NO_TOKEN, -1
        for grant in self._grants:
            for pattern in grant.experiments:
                if len(pattern) > best and Grant("", [pattern]).problem(key) is None:
                    owner, best = grant.name, len(pattern)
        return owner
