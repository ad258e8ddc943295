"""Everything that a bridge keeps in its journal, opened and closed together."""

import os
import secrets
import socket
import time
from collections.abc import Callable, Collection

from otel_rl.bridge.config import RUN_SHARE, BridgeSettings
from otel_rl.bridge.journal.deliveries import DeliveryStore
from otel_rl.bridge.journal.interface import Journal, Ownership, SoleOwner
from otel_rl.bridge.journal.leases import BridgeLeases
from otel_rl.bridge.journal.places import open_journal
from otel_rl.bridge.journal.runs import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.receive.journal_shares import JournalShares
from otel_rl.bridge.receive.tokens import TokenShares
from otel_rl.records import ExperimentKey


class Stores:
    """The journal of one bridge, with its parts.

    Args:
        tenant: Returns the name of the tenant that a run belongs to.

    Attributes:
        leases: Leases of the runs that this bridge owns; None where no other bridge shares the
            journal.
        deliveries: Deliveries to the first tracker; ``of`` returns those to another.

    Raises:
        ConfigError: The journal cannot be used.
        JournalLocked: Another bridge has the data directory.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        shares: TokenShares,
        *,
        tenant: Callable[[ExperimentKey], str],
        gained: Callable[[ExperimentKey, bool], None],
        lost: Callable[[Collection[ExperimentKey]], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        journal = settings.journal
        url = None if journal.url is None else journal.url.get_secret_value()
        self.journal = open_journal(settings.data, url, max_bytes=journal.max_bytes)
        self._lease_journal: Journal | None = None
        self.leases: BridgeLeases | None = None
        if url is not None:
            # Connections of their own, so that they do not wait behind requests.
            self._lease_journal = open_journal(
                settings.data, url, max_bytes=journal.max_bytes, connections=2
            )
            self.leases = BridgeLeases(
                self._lease_journal,
                owner=f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}",
                trackers=settings.tracker.trackers,
                lease_s=journal.lease_s,
                gained=gained,
                lost=lost,
            )
        self.owners: Ownership = self.leases or SoleOwner()
        self.spool = Spool(
            self.journal,
            max_share=RUN_SHARE,
            is_shared=shares.are_needed,
            owners=self.owners,
        )
        self.room = JournalShares(
            shares, journal.max_bytes, self.spool.in_use, tenant, clock_s=clock_s
        )
        self.run_store = RunStore(
            self.journal,
            max_share=RUN_SHARE,
            owners=self.owners,
            shares=self.room,
        )
        self.deliveries = DeliveryStore(
            self.journal,
            settings.tracker.trackers[0],
            others=settings.tracker.trackers[1:],
            owners=self.owners,
            has_room=self.run_store.has_room,
        )

    def close(self) -> None:
        self.journal.close()
        if self._lease_journal is not None:
            self._lease_journal.close()
