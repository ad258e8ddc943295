"""Merges run metadata from the announcements of the processes. Pure.

Announcements come in any order, possibly repeated. The last writer wins, by the time of the
announcement, so the result does not depend on the order of arrival; for the place of the run in the
tracker the first. Tags are united. Only of the program's own runs in the tracker the first to
arrive holds: rows are written to it from then on.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import field

from otel_rl.bridge.journal.state import Int64, Stored, check_json
from otel_rl.records import (
    Announcement,
    Attempt,
    Description,
    Device,
    ExperimentStatus,
    Provenance,
    Value,
    WorkerFailure,
)

__all__ = ["MAX_CONFIG_KEYS", "MAX_HOSTS", "MAX_TAGS", "RunMetadata"]

MAX_CONFIG_KEYS = 4_096
"""Top-level keys of a run's config. W&B shows a config as one table; the largest have hundreds."""

MAX_TAGS = 256
"""Tags of a run."""

MAX_HOSTS = 1_024
"""Machines that are named in a run."""

_MAX_ROLES = 32  # of one machine

_LAST_COUNTS = ("notes", "group", "job_type", "name")

# Where the tracker's run is, it stays.
_FIRST_COUNTS = ("project", "entity", "mode")

# Defaults are kept as announced so much earlier: before every time of an event, which is positive.
_BEFORE_ANY_NS = 1 << 63

_OWN_RUN = "own_run"

# What stands for the run is what trains.
_FIRST_ROLE = "trainer"


class RunMetadata(Stored):
    """Merged announcements of one experiment."""

    # Every value with the time of its announcement.
    _config: dict[str, tuple[Int64, Any]] = field(default_factory=dict)
    _texts: dict[str, tuple[Int64, str]] = field(default_factory=dict)
    _status: tuple[Int64, ExperimentStatus] = (0, ExperimentStatus.RUNNING)
    _tags: dict[str, None] = field(default_factory=dict)
    _provenance: Provenance | None = None
    _hosts: dict[str, dict[str, None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for _, value in self._config.values():
            check_json(value)

    def add(self, announcements: Iterable[Announcement]) -> int:
        """Merge announcements.

        Returns:
            Number of keys, tags, machines and their roles over the bounds.
        """
        return sum(self._add(one) for one in announcements)

    def describe(
        self,
        so_far: ExperimentStatus | None = None,
        devices: Mapping[str, Device] | None = None,
        failures: Sequence[WorkerFailure] = (),
        attempts: Sequence[Attempt] = (),
    ) -> Description:
        """Return the description of the run.

        Args:
            so_far: Status by the state of the workers, if no process has announced the end.
            devices: The run's GPUs and hosts, by the prefix of their keys.
            failures: Of workers.
            attempts: After the first.
        """
        _, status = self._status
        if status is ExperimentStatus.RUNNING and so_far is not None:
            status = so_far
        return Description(
            {key: value for key, (_, value) in self._config.items()},
            self._text("notes"),
            tuple(self._tags),
            self._text("group"),
            self._text("job_type"),
            status,
            devices or {},
            self._provenance,
            {host: sorted(roles) for host, roles in sorted(self._hosts.items())},
            failures,
            attempts,
            self._text("project"),
            self._text("entity"),
            self._text("mode"),
            self._text("name"),
            self._text(_OWN_RUN) if _OWN_RUN in self._texts else None,
        )

    def _add(self, one: Announcement) -> int:
        if one.status is not None:
            self._status = max(self._status, (one.time_ns, one.status))
        for name in _LAST_COUNTS:
            if (text := getattr(one, name)) is not None:
                self._texts[name] = max(self._texts.get(name, (0, "")), (one.time_ns, text))
        for name in _FIRST_COUNTS:
            if text := getattr(one, name):
                said = (one.time_ns, text)
                self._texts[name] = min(self._texts.get(name, said), said)
        if one.own_run is not None and not self._text(_OWN_RUN):
            self._texts[_OWN_RUN] = (one.time_ns, one.own_run)
        left_out = self._add_config(one.config, one.time_ns)
        left_out += self._add_config(one.defaults, one.time_ns - _BEFORE_ANY_NS)
        for tag in one.tags:
            if tag in self._tags or len(self._tags) < MAX_TAGS:
                self._tags[tag] = None
            else:
                left_out += 1
        if one.provenance is not None:
            left_out += self._add_provenance(one.provenance)
        return left_out

    def _add_config(self, config: Mapping[str, Value], time_ns: int) -> int:
        left_out = 0
        for key, value in config.items():
            known = self._config.get(key)
            if known is None and len(self._config) >= MAX_CONFIG_KEYS:
                left_out += 1
            elif known is None or _rank(known) <= _rank((time_ns, value)):
                self._config[key] = (time_ns, value)
        return left_out

    def _add_provenance(self, one: Provenance) -> int:
        if self._provenance is None or _precedence(one) <= _precedence(self._provenance):
            self._provenance = one
        if not one.host:
            return 0
        roles = self._hosts.get(one.host)
        if roles is None and len(self._hosts) >= MAX_HOSTS:
            return 1
        roles = self._hosts.setdefault(one.host, {})
        if one.role not in roles and len(roles) >= _MAX_ROLES:
            return 1
        roles[one.role] = None
        return 0

    def _text(self, name: str) -> str:
        return self._texts.get(name, (0, ""))[1]


def _precedence(one: Provenance) -> tuple[bool, int, int, str]:
    """Return a rank, smallest first: trainers, low indexes, and of one worker its last start."""
    return one.role != _FIRST_ROLE, max(0, one.index), -one.time_ns, repr(one)


def _rank(entry: tuple[int, Value]) -> tuple[int, str]:
    """Return a rank that decides the same way between two values of one time."""
    time_ns, value = entry
    return time_ns, repr(value)
