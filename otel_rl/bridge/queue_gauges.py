"""Gauges of a bridge: sizes of its journal, and of the queues of each run."""

import contextlib
from collections.abc import Iterator

from otel_rl.bridge.counters import Gauge
from otel_rl.bridge.delivery.manager import DeliveryManager
from otel_rl.bridge.journal.interface import Journal
from otel_rl.bridge.journal.run_store import RunStore
from otel_rl.bridge.journal.spool import Spool
from otel_rl.bridge.self_metrics import GaugeValue
from otel_rl.errors import JournalError
from otel_rl.records import ExperimentKey
from otel_rl.semconv import names

__all__ = ["queue_gauges"]


def queue_gauges(
    journal: Journal, spool: Spool, run_store: RunStore, delivery: DeliveryManager
) -> Iterator[GaugeValue]:
    """Yield the present values, of runs of this bridge; fewer while the journal is unreachable."""
    with contextlib.suppress(JournalError):  # the row thread reports it
        yield GaugeValue(Gauge.JOURNAL_SIZE, journal.size())
        for key, size in spool.waiting_bytes().items():
            if not run_store.is_ours(key):
                continue  # its owner reports it
            yield GaugeValue(Gauge.SPOOL_SIZE, size, _named(key))
        for key in dict.fromkeys(status.key for status in delivery.status()):
            yield GaugeValue(Gauge.ROWS_PENDING, delivery.pending(key), _named(key))


def _named(key: ExperimentKey) -> dict[str, str]:
    return {names.RL_EXPERIMENT_NAME: key.experiment, names.RL_TRIAL_NAME: key.trial}
