"""Objects that the deliveries of all runs share."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from otel_rl.bridge.delivery.delivery_interfaces import (
    Count,
    DeliveryRecord,
    DeliverySettings,
    RowSource,
    Writer,
)
from otel_rl.bridge.delivery.one_run.requests import Requests
from otel_rl.bridge.delivery.selection.project_keys import ProjectKeys
from otel_rl.bridge.delivery.writer_slots import WriterSlots
from otel_rl.records import Description, ExperimentKey

__all__ = ["Shared"]


@dataclass(frozen=True, slots=True)
class Shared:
    """Common objects of the deliveries of all runs.

    Attributes:
        source: Store of the rows.
        record: Record of what the tracker has.
        settings: Settings of the delivery.
        count: Adds to the bridge's counters.
        slots: Limits the number of live runs.
        writer: Makes the driver of the tracker, anew for each opening.
        monotonic: Seconds, for intervals.
        jitter: Returns a number in [0, 1) that spreads retries.
        opened: Called with each run and its location, when that is known or another one.
        knows_run: Whether a run with this metadata can be opened, see ``TrackerKind``.
        nothing_follows: Set once no metadata can come any more.
        project: Keys of all runs.
    """

    source: RowSource
    record: DeliveryRecord
    settings: DeliverySettings
    count: Count
    slots: WriterSlots[Requests]
    writer: Callable[[], Writer]
    monotonic: Callable[[], float]
    jitter: Callable[[], float]
    opened: Callable[[ExperimentKey, str], None] = lambda *_: None
    knows_run: Callable[[Description], bool] = lambda _: True
    nothing_follows: threading.Event = field(default_factory=threading.Event)
    project: ProjectKeys = field(default_factory=ProjectKeys)
