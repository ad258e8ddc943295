"""Messages of a run beside its values: warnings, findings, and the run's description."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import field
from msgspec.structs import replace

from otel_rl.bridge.journal.state import Int64, Number, Stored, check_json
from otel_rl.bridge.keys import (
    DIAGNOSIS_ALERT,
    DIAGNOSIS_CAUSE,
    DIAGNOSIS_WORKER,
    NO_FINDING,
)
from otel_rl.bridge.rows.series.key_groups import GroupTable, UnitChange, device_of
from otel_rl.bridge.rows.series.streams import Group
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import (
    Announcement,
    Attempt,
    Description,
    Device,
    ExperimentStatus,
    Provenance,
    Series,
    Table,
    Value,
    WorkerFailure,
)

UNIT_CHANGED = "otel_rl/bridge/unit_changed"
"""Label: a metric was reported in a second unit, and the key of those values."""

DROPPED = "otel_rl/bridge/dropped"
"""Label: the reason for dropped points of new series, and the first of them."""

SHARED = "otel_rl/bridge/shared_instance"
"""Label: several processes report as one worker."""

OVERFLOWED = "otel_rl/bridge/overflowed"
"""Label: an SDK had no room for more attribute sets, and so for no more steps."""

FOLDED = "otel_rl/bridge/folded"
"""Label: a metric has too many attribute sets, or spans have too many names, and why."""

SAMPLED = "otel_rl/bridge/sampled"
"""Label: spans of steps are dropped before the bridge, so critical paths may be wrong."""

CONTINUED = "otel_rl/bridge/continued"
"""Label: workers came after the end of the run."""

TOLD = frozenset({CONTINUED, DROPPED, FOLDED, OVERFLOWED, SAMPLED, SHARED, UNIT_CHANGED})
"""Every label of a warning, which is also logged for the operator."""


class DroppedPoints(NamedTuple):
    """Points of one worker that were dropped because the run has reached its series limit.

    Attributes:
        example: Name of the metric of the first dropped point.
    """

    points: int
    example: str


class DataWarning(Stored):
    """Warning about the data, written to the run.

    Attributes:
        labels: Labels of the warning, by tracker key.
    """

    time_ns: Int64
    labels: Mapping[str, str]


def of_units(changes: Iterable[UnitChange], time_ns: int) -> Iterable[DataWarning]:
    for change in changes:
        yield DataWarning(time_ns, {UNIT_CHANGED: str(change)})


def of_continued(time_ns: int, *, went_well: bool) -> DataWarning:
    words = (
        f"The run had {'ended' if went_well else 'crashed'} and goes on: further processes report "
        "under its names. If they are of another job, give that a trial of its own."
    )
    return DataWarning(time_ns, {CONTINUED: words})


def of_dropped(series: Series, settings: AlignSettings, time_ns: int) -> DataWarning:
    """Make the warning about dropped points of new series, at the first dropped point."""
    words = (
        f"Points of new series are dropped, the first of {series.name!r} of {series.worker.role}: "
        f"the experiment has as many series as it may (rows.max_series = {settings.max_series}, "
        f"and {settings.max_keys} tracker keys). An attribute with a new value every time makes a "
        "series each time: send it as a value, or raise rows.max_series."
    )
    return DataWarning(time_ns, {DROPPED: words})


def of_shared(series: Series, time_ns: int) -> DataWarning:
    """Make the warning about two processes that report under one name at the same time."""
    name = series.worker.instance.rpartition("/")[2]
    named = f"service.instance.id {name!r}" if name else "no service.instance.id"
    words = (
        f"Two processes of role {series.worker.role!r} report at a time with {named}, and are one "
        "worker of the run. Their counters add up, but their gauges are one series: give each "
        "process an id of its own, e.g. OTEL_RESOURCE_ATTRIBUTES=service.instance.id=..."
    )
    return DataWarning(time_ns, {SHARED: words})


def of_torn(series: Series, time_ns: int) -> DataWarning:
    """Make the warning about several totals of one series at the same time."""
    words = (
        f"{series.name!r} of role {series.worker.role!r} has several totals at a time with the "
        "same attributes and service.instance.id. Of cumulative ones the run has the largest; "
        "deltas add up, but equal ones count once. Give each process an id of its own, and keep "
        "attributes on the points: the Collector's groupbyattrs moves them to the resource."
    )
    return DataWarning(time_ns, {SHARED: words})


def of_overflowed(keys: GroupTable, settings: AlignSettings, time_ns: int) -> Iterable[DataWarning]:
    """Make the warnings about attribute sets that found no room, in the run or in an SDK."""
    for group in keys.take_overflowed():
        of_metric = [one for one in keys.groups if _metric(one) == _metric(group)]
        if len(of_metric) > settings.max_metric_keys:
            yield DataWarning(time_ns, {FOLDED: _in_one_key(group, of_metric)})
        else:
            yield DataWarning(time_ns, {OVERFLOWED: _without_steps(group)})


def _metric(group: Group) -> tuple[object, ...]:
    return group.role, group.name, group.own, device_of(group)


def _in_one_key(group: Group, of_metric: Iterable[Group]) -> str:
    values: dict[str, set[str]] = defaultdict(set)
    for one in of_metric:
        for attribute, value in one.attributes:
            values[attribute].add(value)
    attribute = max(values, key=lambda one: len(values[one]))
    return (
        f"{group.name!r}{f' of {group.role!r}' if group.role else ''} has as many keys as a metric "
        "may: its attribute "
        f"{attribute!r} has {len(values[attribute])} values. Further ones are {group.key} "
        "together. Leave it out of metrics, or put it into spans."
    )


def of_spans(role: str, most: int, time_ns: int) -> DataWarning:
    words = (
        f"The run has {most} names of spans on critical paths, most of them of {role!r}: "
        "further ones are critical_path/other/other together. Give spans names without ids, or an "
        "attribute rl.phase, and put ids into other attributes."
    )
    return DataWarning(time_ns, {FOLDED: words})


def of_sampled(shown_by: str, time_ns: int) -> DataWarning:
    words = (
        f"{shown_by}. Critical paths, and what limited a step, may lack the work of other "
        "processes. Send all spans to the bridge and sample behind it, or keep whole steps: "
        "OTEL_RL_TRACE_STEPS."
    )
    return DataWarning(time_ns, {SAMPLED: words})


def _without_steps(group: Group) -> str:
    return (
        f"The SDK of a process of role {group.role!r} keeps a bounded number of sets of "
        f"attributes of {group.name!r}, 2,000 by default. What it measures beyond has lost its "
        f"attributes and its step, and is {group.key}. A step is such a set: export gauges "
        "with delta temporality, and give counters no step (`otel-rl help other-sdks`)."
    )


class News(NamedTuple):
    """News that somebody who does not look at the run wants to be told at once.

    Attributes:
        kind: Kind of the found cause, as a diagnosis names it, or ``crash``.
        worker: Worker of the cause, or its role; empty without one.
        step: Step in which the cause was found; None for a run without steps.
        time_ns: Time of the news, since the Unix epoch.
        words: The news in one sentence.
    """

    kind: str
    worker: str
    step: int | None
    time_ns: int
    words: str


CRASH: Final = "crash"
"""Kind of the news that a failure has ended the run."""


_COLUMNS = ("rank", "kind", "role", "worker", "phase", "since_step", "score", "words")


class Finding(Stored):
    """Result of a diagnosis, faults or none.

    Attributes:
        step: Last step of the diagnosed range.
        time_ns: Time of the diagnosis, by the bridge's clock.
        verdict: ``cause``, ``no clear cause``, ``healthy`` or ``cannot tell``.
        words: The finding in one sentence.
        causes: Ranked causes, each with the fields of the table.
        is_last: Whether the run had ended, so that this is its last finding.
        is_update: Whether the previous finding named the same fault with another estimate.
    """

    step: Int64
    time_ns: Int64
    verdict: str
    words: str
    causes: Sequence[Mapping[str, Any]] = ()
    is_last: bool = False
    is_update: bool = False

    def __post_init__(self) -> None:
        check_json(self.causes)

    @property
    def subject(self) -> tuple[str, ...]:
        """Return the identity of the found fault: findings of one fault share it."""
        first = self.causes[0] if self.causes else {}
        return self.verdict, *(str(first.get(key)) for key in ("kind", "role", "worker"))

    @property
    def amount(self) -> float | None:
        """Return the size of the first cause; None if that cause has no size."""
        amount = (self.causes[0].get("amount") if self.causes else None) or {}
        return amount.get("ratio") or amount.get("after")

    @property
    def has_ended(self) -> bool:
        return bool(self.causes) and self.causes[0].get("until_step") is not None

    @property
    def labels(self) -> Mapping[str, str]:
        """Return the labels of the row; an update omits the cause's label, which raises alerts."""
        cause = worker = alert = NO_FINDING
        if self.causes:
            first = self.causes[0]
            cause = str(first.get("kind"))
            worker = str(first.get("worker") or first.get("role") or "")
            alert = self.words
        labels = {
            "diagnosis/verdict": self.verdict,
            DIAGNOSIS_CAUSE: cause,
            DIAGNOSIS_WORKER: worker,
            DIAGNOSIS_ALERT: alert,
        }
        if self.is_update:
            del labels[DIAGNOSIS_CAUSE]
        return labels

    @property
    def table(self) -> Table:
        rows = [
            [place, *(cause.get(column) for column in _COLUMNS[1:])]
            for place, cause in enumerate(self.causes, 1)
        ]
        return Table(_COLUMNS, rows)


_NEWS: Final = 1.25
"""An amount that is so many times larger or smaller than the one that was told is news."""


class NewFindings(Stored):
    """Findings of a run that tell more than the finding before.

    A finding tells more if it names another fault, a different amount or end of the same fault, or
    is the last finding of a run that has ended.

    Attributes:
        waiting: Findings that are in no row yet.
        last_subject: Subject of the last finding; None before the first with a cause.
        has_ended: Whether the fault of the last finding was over.
        told: Kind and worker, or role, of each cause of the last finding.
        news: Causes that the previous finding did not have, until they are taken.
    """

    waiting: list[Finding] = field(default_factory=list)
    last_subject: tuple[str, ...] | None = None
    last_words: str = ""
    last_amount: Number | None = None
    has_ended: bool = False
    told: list[tuple[str, str]] = field(default_factory=list)
    news: list[News] = field(default_factory=list)

    def add(self, finding: Finding) -> bool:
        """Add a finding, unless it repeats the last one. Returns whether it was added."""
        self._add_news(finding)
        if not finding.causes and not self.last_words:
            self.last_subject = finding.subject  # no news, but a list tells that it was looked at
            return False
        begins_again = self.has_ended and not finding.has_ended
        is_same = finding.subject == self.last_subject and not begins_again
        if is_same and not self._is_update(finding):
            return False
        self.last_subject, self.last_words = finding.subject, finding.words
        self.last_amount, self.has_ended = finding.amount, finding.has_ended
        self.waiting.append(replace(finding, is_update=True) if is_same else finding)
        return not is_same

    def _add_news(self, finding: Finding) -> None:
        causes = {
            (str(cause.get("kind")), str(cause.get("worker") or cause.get("role") or "")): cause
            for cause in finding.causes
        }
        self.news += [
            News(*who, finding.step, finding.time_ns, str(cause.get("words") or finding.words))
            for who, cause in causes.items()
            if who not in self.told
        ]
        self.told = [*causes]

    def take_news(self) -> list[News]:
        news, self.news = self.news, []
        return news

    def _is_update(self, finding: Finding) -> bool:
        if finding.words == self.last_words or not finding.causes:
            return False
        if finding.is_last or finding.has_ended != self.has_ended:
            return True
        told, found = self.last_amount, finding.amount
        if not told or not found:
            return False
        return not 1 / _NEWS < found / told < _NEWS

    def take(self) -> list[Finding]:
        waiting, self.waiting = self.waiting, []
        return waiting


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
    """Merged announcements of one experiment: its metadata."""

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
            Number of keys, tags, machines and roles of machines beyond the bounds.
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
            so_far: Status by the state of the workers, used if no process has announced the end.
            devices: The run's GPUs and hosts, by the prefix of their keys.
            attempts: Attempts after the first.
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
    """Return a rank, smallest first: trainers, then low indexes, then a worker's last start."""
    return one.role != _FIRST_ROLE, max(0, one.index), -one.time_ns, repr(one)


def _rank(entry: tuple[int, Value]) -> tuple[int, str]:
    """Return a rank that always decides the same way between two values of one time."""
    time_ns, value = entry
    return time_ns, repr(value)
