"""Stages of a bridge, each made from the bridge's settings, and the pages beside OTLP."""

import importlib.util
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from starlette.routing import BaseRoute

from otel_rl.bridge.archive.archiver import FILE_BYTES, Archiver
from otel_rl.bridge.config import BridgeSettings, ListenSettings
from otel_rl.bridge.counters import Counter, Counters, Delay, Where
from otel_rl.bridge.delivery.manager import DeliveryManager, DeliverySettings
from otel_rl.bridge.delivery.tracker import backend
from otel_rl.bridge.diagnosis.process import DiagnosisProcess, arguments_of, environment_of
from otel_rl.bridge.diagnosis.scheduler import DiagnosisScheduler
from otel_rl.bridge.journal.archive_store import ArchiveStore
from otel_rl.bridge.journal.leases import FREE
from otel_rl.bridge.journal.retention import EVERY_RUN, Retention
from otel_rl.bridge.receive.limits import ReceiveLimits
from otel_rl.bridge.receive.pipeline import IngestPipeline
from otel_rl.bridge.receive.server import HttpServer
from otel_rl.bridge.receive.tls import Tls
from otel_rl.bridge.receive.tokens import Grant, TokenShares
from otel_rl.bridge.rows.scheduler import Scheduler
from otel_rl.bridge.stores import Stores
from otel_rl.errors import MissingExtra
from otel_rl.records import ExperimentKey, Row
from otel_rl.setting_types import Address

if TYPE_CHECKING:
    from otel_rl.bridge.receive.grpc import GrpcServer

# Pause after a tracker's first failure; it doubles from there.
_FIRST_RETRY_S = 0.5

_ARCHIVE_PART = 10
"""A tenth of the journal, and at least a file, is for values that are not in files yet."""

_ENDED_PART = 2
"""Half of the journal, and of a token's share of it, is for ended runs."""

_LIVE_RUNS = 32
"""Live runs at once, each with a writer process: one with W&B takes 100 MB."""

_RUNS_IN_BRIDGE = 256
"""Live runs at once that the bridge itself writes: each takes a thread and 3 open files."""


def archiver(
    settings: BridgeSettings, stores: Stores, counters: Counters, clock_ns: Callable[[], int]
) -> Archiver | None:
    """Return the archive's writer; None if it is off, or on by default without its library.

    Raises:
        MissingExtra: The settings demand the archive, and its library is not installed.
    """
    if settings.archive.enabled is False:
        return None
    if importlib.util.find_spec("pyarrow") is None:
        if settings.archive.enabled:
            raise MissingExtra("archive.enabled: the archive", "pyarrow", "archive")
        return None
    return Archiver(
        ArchiveStore(stores.journal, stores.owners),
        settings.archive.directory or settings.data / "archive",
        every_s=settings.archive.every_s,
        max_waiting_bytes=max(settings.journal.max_bytes // _ARCHIVE_PART, FILE_BYTES),
        counters=counters,
        clock_ns=clock_ns,
    )


def delivery_settings(settings: BridgeSettings, name: str) -> DeliverySettings:
    tracker = settings.tracker
    is_shared = settings.journal.url is not None
    most = _RUNS_IN_BRIDGE if backend(name).in_bridge else _LIVE_RUNS
    return DeliverySettings(
        tracker=name,
        directory=tracker.directory or settings.data,
        # Bridges that share the tracker's directory share its locks.
        scratch=tracker.directory if is_shared else settings.data,
        attributes=tracker.options_of(name),
        of_teams={
            team: own.options_of(name) for team, own in settings.tracker_of_teams.items() if team
        },
        max_writers=tracker.max_live_runs or most,
        confirm_interval_s=tracker.confirm_interval_s,
        keep_confirmed_s=tracker.keep_confirmed_s,
        first_retry_s=min(_FIRST_RETRY_S, tracker.max_retry_s),
        max_retry_s=tracker.max_retry_s,
        detail=tracker.detail,
        names=tracker.names,
        per_worker=settings.rows.per_worker,
    )


def delivery(
    settings: BridgeSettings,
    stores: Stores,
    counters: Counters,
    clock_ns: Callable[[], int],
    *,
    tenant: Callable[[ExperimentKey], str],
    shares: TokenShares,
    opened: Callable[[ExperimentKey, str], None],
) -> DeliveryManager:
    """Return the delivery to all trackers.

    Raises:
        ConfigError: A tracker is unknown, or cannot work with its settings.
    """
    for tracker in settings.tracker_of_teams.values():
        tracker.check_options()

    def written(tracker: str, key: ExperimentKey, rows: Sequence[Row]) -> None:
        now_ns = clock_ns()
        seconds = [(now_ns - row.stored_ns) / 1e9 for row in rows if row.stored_ns]
        counters.delayed(Delay.TRACKER, seconds, team=shares.owner_of(key), tracker=tracker)

    return DeliveryManager(
        stores.run_store,
        [
            (delivery_settings(settings, name), stores.deliveries.of(name))
            for name in settings.tracker.trackers
        ],
        counters.add,
        tenant=tenant,
        tenants=shares.tokens,
        team=shares.owner_of,
        opened=opened,
        written=written,
    )


def retention(
    settings: BridgeSettings,
    stores: Stores,
    shares: TokenShares,
    *,
    tenant: Callable[[ExperimentKey], str],
    busy: Callable[[], Collection[ExperimentKey]],
) -> Retention:
    """Return what removes ended runs; ``busy`` returns runs that still have work."""
    journal = settings.journal
    ended_bytes = journal.max_bytes // _ENDED_PART

    def share_of(key: ExperimentKey) -> tuple[str, int]:
        name = tenant(key)
        return name, shares.of(name, ended_bytes)

    return Retention(
        stores.journal,
        trackers=settings.tracker.trackers,
        keep_ns=int(journal.keep_ended_s * 1e9),
        share_of=share_of,
        late_ns=int(ReceiveLimits.of(settings.receive).max_future_s * 1e9),
        busy=busy,
        free=EVERY_RUN if journal.url is None else FREE,
    )


def diagnosis(
    settings: BridgeSettings,
    stores: Stores,
    rows: Scheduler,
    counters: Counters,
    clock_ns: Callable[[], int],
) -> DiagnosisScheduler:
    return DiagnosisScheduler(
        stores.run_store,
        rows,
        diagnosis_process(settings),
        every_s=settings.diagnose.every_s,
        counters=counters,
        clock_ns=clock_ns,
    )


def diagnosis_process(settings: BridgeSettings) -> DiagnosisProcess:
    """Return the diagnosis process. Its words become alerts in the tracker, with its key names."""
    place = settings.journal_place
    arguments = [*arguments_of(place), f"--names={settings.tracker.names}"]
    return DiagnosisProcess(environment_of(place), arguments)


class Page(Protocol):
    """Pages for people at the HTTP address, made by another module."""

    def routes(
        self,
        grant: Callable[[str | None], Grant | None],
        *,
        wants_token: bool,
        host: str,
        count_failure: Callable[[], None],
    ) -> Sequence[BaseRoute]:
        """Return the routes; none has a path of OTLP, and none blocks the event loop.

        Args:
            grant: Returns the grant of an ``Authorization`` header; None if no token is required.
            wants_token: Whether a token is required.
            count_failure: Called for each failure of the page that its reader gets as an answer.
        """
        ...

    def stop(self) -> None:
        """End requests that would delay the server's end. Any thread may call it; idempotent."""
        ...


def servers(
    listen: ListenSettings,
    intake: IngestPipeline,
    tls: Tls | None,
    *,
    page: Page | None,
    counters: Counters,
    metrics: Callable[[], str],
    takes_exports: bool = True,
) -> "Mapping[str, HttpServer | GrpcServer]":
    """Bind the ports. The servers answer once they are started.

    Args:
        counters: Counters of failures of the page.
        metrics: Returns the text that Prometheus scrapes at the health port.
        takes_exports: Whether the bridge takes exports; without them it only has a page.

    Returns:
        The servers by the names of their settings, in the order in which they are stopped.

    Raises:
        ConfigError: A port is taken.
    """
    bound: dict[str, HttpServer | GrpcServer] = {}
    try:
        if listen.grpc is not None:
            bound["grpc"] = _grpc_server(listen.grpc, intake, tls)
        if listen.http is not None:
            grpc = bound["grpc"].address if "grpc" in bound else None
            http = HttpServer(
                intake,
                *listen.http,
                tls,
                grpc=grpc,
                routes=_routes(page, listen.http.host, intake, counters),
                takes_exports=takes_exports,
            )
            bound = {"http": http, **bound}
        if listen.health is not None:
            bound["health"] = HttpServer(intake, *listen.health, metrics=metrics)
    except BaseException:
        for server in bound.values():
            server.stop()
        raise
    return bound


def _grpc_server(address: Address, intake: IngestPipeline, tls: Tls | None) -> "GrpcServer":
    from otel_rl.bridge.receive.grpc import GrpcServer  # 9 MB

    return GrpcServer(intake, *address, tls)


def _routes(
    page: Page | None, host: str, intake: IngestPipeline, counters: Counters
) -> Sequence[BaseRoute]:
    if page is None:
        return ()
    return page.routes(
        intake.tokens.grant,
        wants_token=intake.tokens.are_needed,
        host=host,
        count_failure=lambda: counters.add(Counter.EXCEPTIONS, reason=Where.VIEW),
    )
