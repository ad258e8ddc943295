"""Joins a W&B run that a user's own process has begun, and adds rows to it.

W&B's shared mode lets several writers append to one run. The bridge is not its primary writer: it
sends rows, and never a state, a summary, tags, notes or facts of its machine. All its keys begin
with ``otel_rl/``, and only they get axes of ours, ``otel_rl/step`` and ``otel_rl/hours``, so that
the owner's logs and definitions stay as they are.

A shared run cannot be resumed: the server appends the lines of all writers, so its line count does
not tell how many of our rows it has. Every row carries its number under a key of its own, the mark,
and the server is queried for the lines that have a mark: from the last known one, in pages small
enough to be complete. Rows that were in flight when a writer was killed may still arrive, and could
not be recognised as repeats. Therefore an opening leaves a note that only its closing changes, and
an opening that finds a note waits until the answers are stable.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from otel_rl.bridge.delivery.texts import ConsoleLines
from otel_rl.bridge.delivery.tracker import RunInfo, writer_file
from otel_rl.bridge.delivery.wandb.account import Account, WandbSettings, find_account
from otel_rl.bridge.delivery.wandb.growing_tables import GrowingTables
from otel_rl.bridge.delivery.wandb.metadata import device_config, show_config
from otel_rl.bridge.delivery.wandb.rows import PREFIX, KeyDisplay, prefixed
from otel_rl.bridge.delivery.wandb.sdk import Line, OpenedRun, quiet_settings, translated
from otel_rl.bridge.delivery.wandb.server import Upload, config_entry, dig, query
from otel_rl.bridge.delivery.wandb.summary import RunSummary
from otel_rl.bridge.delivery.wandb.system_panels import SystemPanels
from otel_rl.bridge.private_files import sync
from otel_rl.errors import TrackerRejected, TrackerUnavailable
from otel_rl.records import Description, Row

if TYPE_CHECKING:
    import wandb

_LABEL = "otel_rl"  # W&B's label of one writer of a run
_POLL_S = 1.0  # between two queries while a run is to begin, or its answers to settle
_BEGIN_S = 20.0  # a run that has not begun by then is retried like a refused one

_RUN_QUERY = """
query JoinedRun($project: String!, $entity: String, $name: String!) {
  project(name: $project, entityName: $entity) {
    run(name: $name) { config historyKeys }
  }
}
"""

_ROWS_QUERY = """
query JoinedRunRows($project: String!, $entity: String, $name: String!, $spec: JSONString!) {
  project(name: $project, entityName: $entity) {
    run(name: $name) { sampledHistory(specs: [$spec]) }
  }
}
"""

_PAGE_STEPS = 1000  # the SDK's own page; with as many samples as steps, none is left out

_FEATURES = "3"  # in the telemetry that the SDK stores in a run's config
SHARED_MODE = 67
"""Number of the feature ``shared_mode`` in it."""

SHARE_IT = (
    "Set WANDB_MODE=shared for the process that calls wandb.init, or let it pass "
    'settings=wandb.Settings(mode="shared", x_primary=True).'
)
"""Remedy for a run that is not shared."""


def mark_key(run: RunInfo) -> str:
    """Return the key of the row number in every row, specific to the run and the journal."""
    source = hashlib.blake2b(f"{run.run_id}/{run.journal}".encode(), digest_size=4)
    return f"otel_rl/row/{source.hexdigest()}"


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """State of a run at the server.

    Attributes:
        is_shared: Whether the run's owner lets others write to it.
        last_step: W&B's step of the run's last line, -1 if it has none.
    """

    is_shared: bool
    last_step: int


def look_up(account: Account) -> JoinedRun | None:
    """Query the run that the account joins; None if it does not exist. May raise as ``query``."""
    run = _run(account, "JoinedRun", _RUN_QUERY, {})
    telemetry = dig(config_entry(run.get("config"), "_wandb"), "t") if run else None
    if run is None or telemetry is None:
        return None  # a run without telemetry was created by a sweep, and has not begun
    features = dig(telemetry, _FEATURES)
    last_step = dig(run, "historyKeys", "lastStep")
    return JoinedRun(
        isinstance(features, list) and SHARED_MODE in features,
        int(last_step) if isinstance(last_step, int | float) else -1,
    )


class Marks:
    """Finds the first of our rows that a run lacks.

    Args:
        key: The mark.
        row: All rows below it are known to be in the run.
        step: W&B's step of the last known row; the step at which to begin if no row is known.

    Attributes:
        row: All rows below it are in the run.
    """

    def __init__(self, account: Account, key: str, *, row: int, step: int) -> None:
        self.row = row
        self.step = step
        self._account = account
        self._key = key
        self._next_step = step
        self._above: set[int] = set()  # row numbers found beyond the next expected one

    def are_there(self) -> bool:
        return not self.row or self.row - 1 in self._page(self.step, self.step).values()

    def read(self, *, handed: int | None = None) -> int:
        """Look for further rows of ours. Raises the errors of ``query``.

        Args:
            handed: All rows below it, and no others, may be in the run; None if that is not known.

        Returns:
            ``row``, but at most ``handed``: an earlier writer may have written more.
        """
        run = look_up(self._account)
        if run is None:
            raise TrackerUnavailable(f"The W&B run {self._account.attached_run} is gone.")
        first = self._next_step
        while first <= run.last_step:
            self._take(self._page(first, first + _PAGE_STEPS - 1))
            first += _PAGE_STEPS
        if self.row == handed:
            # Rows handed over from now on come after the present ones.
            self._next_step = max(self._next_step, run.last_step + 1)
        return self.row if handed is None else min(self.row, handed)

    def _take(self, numbers: dict[int, int]) -> None:
        for step, number in sorted(numbers.items()):
            self._next_step = step + 1
            if number >= self.row:
                self._above.add(number)
            while self.row in self._above:
                self._above.remove(self.row)
                self.row += 1
            if number == self.row - 1:
                self.step = step

    def _page(self, first: int, last: int) -> dict[int, int]:
        """Map W&B's steps to row numbers, for marked lines between two steps, inclusive."""
        spec = {
            "keys": [self._key, "_step"],
            "minStep": first,
            "maxStep": last,
            "samples": _PAGE_STEPS,
        }
        run = _run(self._account, "JoinedRunRows", _ROWS_QUERY, {"spec": json.dumps(spec)})
        pages = run.get("sampledHistory") if run else None
        lines = [line for page in pages or () for line in page] if isinstance(pages, list) else []
        return {
            int(line["_step"]): int(line[self._key])
            for line in lines
            if isinstance(line, dict) and self._key in line and "_step" in line
        }


class SharedWandbTracker:
    """Tracker that joins one run of another process; see the module's docstring."""

    def __init__(self) -> None:
        self._settings = WandbSettings()
        self._account = Account(online=True, base_url="", project="", entity="")
        self._shown: OpenedRun | None = None
        self._mark = ""
        self._marks = Marks(self._account, "", row=0, step=0)
        self._upload = Upload("", 0, stall_timeout_s=0)
        self._note_file = Path()
        self._note: _Note | None = None  # as in the file

    def open(self, run: RunInfo, /) -> int:
        """Join the run, if the run exists and its owner shares it."""
        self._settings = WandbSettings.parse(dict(run.attributes))
        self._account = find_account(self._settings, os.environ, run.key, run.description.own_run)
        self._mark = mark_key(run)
        self._note_file = writer_file(run, "joined")
        self._note = _Note.read(self._note_file, self._mark)
        # Queried before `init`, which would create a missing run, and let W&B overwrite the first
        # rows of one that is not shared.
        joined = _shared(self._account)
        self._marks = self._find_rows(joined)
        self._leave_note(is_closed=False)
        row, attempt = self._marks.row, run.description.attempt_below(self._marks.row)
        with translated():
            joined_run = _join(run, self._settings, self._account)
            self._shown = OpenedRun(
                joined_run,
                # For the hours: the summary in W&B is the owner's.
                RunSummary(writer_file(run, "summary"), run.journal, row),
                KeyDisplay(joined_run, attempt, PREFIX, has_axes=self._settings.attempt_axes),
                ConsoleLines(None),
                GrowingTables(self._log_table, writer_file(run, "samples"), row),
                SystemPanels(joined_run) if self._settings.system_panels else None,
            )
            joined_run.define_metric(self._mark, hidden=True)
        self.describe(run.description)
        self._upload = Upload(
            self._account.attached_run,
            self._marks.row,
            stall_timeout_s=self._settings.stall_timeout_s,
        )
        return self._marks.row

    def write(self, rows: Sequence[Row], /) -> None:
        """Log each row in one call, with its number. In shared mode W&B numbers the steps."""
        shown = self._opened()
        self._upload.begin()
        shown.summary.take(rows)

        def log(row: Row, line: Line) -> None:
            marked = {_own(key): value for key, value in line.items()} | {self._mark: row.number}
            shown.run.log(marked, commit=True)
            self._upload.next_row = row.number + 1

        shown.write(rows, log)

    def describe(self, description: Description, /) -> None:
        """Put the config under one key of the run's config; other metadata is the owner's."""
        shown = self._opened()
        with translated():
            known = {**description.config, **device_config(description)}
            config = {_LABEL: known} if known else {}
            show_config(shown.run, config)
        if shown.panels is not None:
            shown.panels.know(description.devices)

    def flush(self, *, timeout_s: float) -> int | None:
        """Query the server for our rows until it has all of them, or the timeout has passed."""
        self._opened()
        self._confirm(timeout_s=timeout_s)
        self._leave_note(is_closed=False)
        return self._upload.safe_row

    def location(self) -> str:
        return str(self._opened().run.url or "")

    def close(self, *, exit_code: int) -> int | None:
        """Leave the run as it is, and end ``wandb-core``. Its owner sets the exit status."""
        if self._shown is not None:
            self._shown.finish(exit_code)
            self._shown = None
            self._confirm()
            self._leave_note(is_closed=True)
        return self._upload.safe_row

    def _log_table(self, key: str, table: "wandb.Table") -> None:
        """Log a table of all samples in a line without a mark: a repeat only replaces the table."""
        self._opened().run.log({_own(key): table}, commit=True)

    def _find_rows(self, joined: JoinedRun) -> Marks:
        note = self._note
        if note is not None and note.is_odd:
            raise _odd(self._account)
        if note is None:
            return Marks(self._account, self._mark, row=0, step=joined.last_step + 1)
        marks = Marks(self._account, self._mark, row=note.row, step=note.step)
        if not marks.are_there():  # the run was emptied or rewound
            marks = Marks(self._account, self._mark, row=0, step=0)
        marks.read()
        if not note.is_closed:
            self._settle(marks)
        return marks

    def _settle(self, marks: Marks) -> None:
        since, row = time.monotonic(), marks.row
        while time.monotonic() - since < self._settings.settle_s:
            time.sleep(min(_POLL_S, self._settings.settle_s))
            if marks.read() > row:
                since, row = time.monotonic(), marks.row

    def _confirm(self, *, timeout_s: float = float("inf")) -> None:
        try:
            self._upload.wait(self._rows_there, timeout_s=timeout_s)
        except TrackerUnavailable as exc:
            # New lines are searched at the end of the run. If W&B put them elsewhere, each opening
            # would consider them lost, and write them again.
            everywhere = Marks(self._account, self._mark, row=self._marks.row, step=0)
            if everywhere.read(handed=self._upload.next_row) == self._marks.row:
                raise
            self._leave_note(is_closed=False, is_odd=True)
            raise _odd(self._account) from exc

    def _rows_there(self) -> int:
        return self._marks.read(handed=self._upload.next_row)

    def _leave_note(self, *, is_closed: bool, is_odd: bool = False) -> None:
        note = _Note(self._mark, self._marks.row, self._marks.step, is_closed, is_odd)
        if note != self._note:
            note.write(self._note_file)
            self._note = note

    def _opened(self) -> OpenedRun:
        if self._shown is None:
            raise TrackerUnavailable(f"The W&B run {self._account.attached_run} is not open.")
        return self._shown


@dataclass(frozen=True, slots=True)
class _Note:
    """Record of how a run was left. Without a note, no row of ours was ever handed over.

    The note lies beside the journal, and is removed with it.
    """

    mark: str
    row: int
    step: int
    is_closed: bool
    is_odd: bool

    @classmethod
    def read(cls, path: Path, mark: str) -> Self | None:
        try:
            note = cls(**json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as exc:
            raise TrackerUnavailable(f"{path}: cannot be read ({exc}).") from exc
        return note if note.mark == mark else None

    def write(self, path: Path) -> None:
        new = path.with_suffix(".new")
        with new.open("w") as file:
            json.dump(asdict(self), file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync(path.parent)


def _shared(account: Account) -> JoinedRun:
    path = account.attached_path
    deadline = time.monotonic() + _BEGIN_S
    while (run := look_up(account)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    if run is None:
        raise TrackerRejected(
            f"There is no W&B run {path} yet.",
            hint="It is joined once wandb.init has made it. Is it in this project? Name it as "
            "ENTITY/PROJECT/RUN_ID.",
        )
    if not run.is_shared:
        raise TrackerRejected(
            f"The W&B run {path} is not in shared mode: W&B would overwrite rows of its owner.",
            hint=SHARE_IT,
        )
    return run


def _odd(account: Account) -> TrackerRejected:
    return TrackerRejected(
        f"The W&B run {account.attached_path} has rows of ours that are not at its end.",
        hint="Let the bridge write a run of its own, under another trial, and report this.",
    )


def _join(run: RunInfo, settings: WandbSettings, account: Account) -> "wandb.Run":
    import wandb

    return wandb.init(
        id=account.attached_run,
        project=account.project,
        entity=account.entity or None,
        dir=run.directory,
        # Of the environment, and of the bridge's own runs.
        tags=[],
        notes="",
        reinit="create_new",
        settings=quiet_settings(
            settings,
            account,
            mode="shared",
            x_primary=False,
            x_update_finish_state=False,
            x_label=_LABEL,
            # Otherwise the SDK sends a summary of its own beside the owner's.
            x_server_side_derived_summary=True,
            program="",
        ),
    )


def _own(key: str) -> str:
    """Return the name of a key in a foreign run. W&B's own keys, which begin with "_", stay."""
    return key if key.startswith("_") else prefixed(key, PREFIX)


def _run(
    account: Account, operation: str, text: str, variables: dict[str, str]
) -> dict[str, object] | None:
    of_run = {
        "project": account.project,
        "entity": account.entity or None,
        "name": account.attached_run,
    }
    run = dig(query(account, operation, text, {**of_run, **variables}), "project", "run")
    return run if isinstance(run, dict) else None
