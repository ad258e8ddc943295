"""Shares of the journal's bound that each run and its tenant may take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from otel_rl.records import ExperimentKey

__all__ = ["Room", "Use", "WholeJournal"]


@dataclass(frozen=True, slots=True)
class Use:
    """Bytes of one run in the journal, about.

    Attributes:
        waiting: Batches that are no rows yet.
        made: What was made of batches: rows, state, description, logs and history.
    """

    waiting: int
    made: int

    @property
    def total(self) -> int:
        """Bytes of both."""
        return self.waiting + self.made


class Room(Protocol):
    """Holds tenants to their shares. Any thread may call any method."""

    @property
    def is_shared(self) -> bool:
        """Return whether there are several tenants: ``check`` and ``made`` need to be called."""
        ...

    def is_left(self, key: ExperimentKey, /) -> bool:
        """Return whether more of the tenant's batches may be made into rows."""
        ...

    def check(self, uses: Mapping[ExperimentKey, Use], /) -> None:
        """Refuse a commit that takes a tenant far beyond its share.

        Args:
            uses: Of each run in the commit, as it will be.

        Raises:
            ShareUsedUp: It does.
        """
        ...

    def made(self, uses: Mapping[ExperimentKey, Use], /) -> None:
        """Count a commit that ``check`` has let pass and that is durable."""
        ...


class WholeJournal:
    """Room where there is one tenant: the journal itself is the bound."""

    is_shared = False

    def is_left(self, _key: ExperimentKey, /) -> bool:
        """See ``Room.is_left``."""
        return True

    def check(self, uses: Mapping[ExperimentKey, Use], /) -> None:
        """See ``Room.check``."""

    def made(self, uses: Mapping[ExperimentKey, Use], /) -> None:
        """See ``Room.made``."""
