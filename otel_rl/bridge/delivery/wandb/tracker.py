"""Writes each run to Weights & Biases: offline without a key, online with one.

Row n is W&B's ``_step`` n, logged in one piece. So the row number is an idempotency key: a resumed
run reports its step, and missing rows are logged again. ``rows.py`` defines the axis of each key,
and ``summary.py`` keeps the run's summary.

Online, the server is the tracker. Rows are safe when its line count includes them.

Offline, a file is the tracker, and such a file cannot be continued: every way of resuming starts at
step 0, and a crash loses what the SDK had in memory. So no row in it counts as safe, ``open``
returns 0, and the whole run is written anew from the journal into a new directory. When the new
directory is finished and was read back from the disk (``offline.py``), older directories of the run
with no more rows of this journal are removed, and one is left. Upload it with ``wandb sync`` after
the run is over: W&B appends a directory that it syncs a second time.

``wandb`` has global state (threads, a subprocess, exit hooks), so one process holds one run.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otel_rl.bridge.delivery.texts import ConsoleLines
from otel_rl.bridge.delivery.tracker import RunInfo, writer_file
from otel_rl.bridge.delivery.wandb.account import Account, WandbSettings, find_account
from otel_rl.bridge.delivery.wandb.growing_tables import GrowingTables
from otel_rl.bridge.delivery.wandb.metadata import (
    Notes,
    ProvenanceFiles,
    pointer,
    show,
    show_notes,
)
from otel_rl.bridge.delivery.wandb.offline import (
    OfflineCopy,
    check_room,
    check_writable,
    removed_unless_opened,
)
from otel_rl.bridge.delivery.wandb.rows import KeyDisplay
from otel_rl.bridge.delivery.wandb.sdk import (
    Line,
    OpenedRun,
    finish,
    quiet_settings,
    translated,
)
from otel_rl.bridge.delivery.wandb.server import JOURNAL_KEY, RemoteRun, RunOnServer, Upload
from otel_rl.bridge.delivery.wandb.summary import RunSummary
from otel_rl.bridge.delivery.wandb.system_panels import SystemPanels
from otel_rl.bridge.delivery.wandb.workspace_view import ProjectView
from otel_rl.errors import TrackerError, TrackerUnavailable
from otel_rl.records import Description, Row
from otel_rl.semconv import names

if TYPE_CHECKING:
    import wandb

_MAX_NAME_LENGTH = 128  # the server's limit for the names of runs and groups


class WandbTracker:
    """Tracker of one W&B run; see the module's docstring."""

    def __init__(self) -> None:
        self._settings = WandbSettings()
        self._account = Account(online=False, base_url="", project="", entity="")
        self._remote = RunOnServer(self._account, "", "")
        self._shown: OpenedRun | None = None
        self._files: ProvenanceFiles | None = None
        self._view: ProjectView | None = None
        self._run_id = ""
        self._notes: Notes | None = None  # of an online run
        self._pointer = ""  # to the page and the journal, in the notes of an offline run
        self._upload = Upload("", 0, stall_timeout_s=0)
        self._copy: OfflineCopy | None = None  # of an offline run, until it is verified

    def open(self, run: RunInfo, /) -> int:
        """Create the run, or resume it online and start it anew offline."""
        self._run_id, self._pointer = run.run_id, pointer(run)
        self._settings = WandbSettings.parse(dict(run.attributes))
        self._account = find_account(self._settings, os.environ, run.key, own_run="")
        online = self._account.online
        self._remote = RunOnServer(self._account, run.run_id, run.journal)
        # Queried first, because an unreachable server costs `init` more than its whole timeout.
        there = self._remote.settled() if online else RemoteRun()
        if not online:
            check_writable(run.directory)
            check_room(run.directory / "wandb", run.run_id)
        with contextlib.ExitStack() as stack:
            stack.enter_context(translated())
            if not online:
                stack.enter_context(removed_unless_opened(run.directory / "wandb", run.run_id))
            opened = _init(run, self._settings, self._account)
        # `run.step` is 0 after a resume until the first log.
        start = opened.starting_step
        try:
            if start != there.rows or (online and not self._remote.is_settled_at(there)):
                raise TrackerUnavailable(
                    f"The W&B run {run.run_id} had {there.rows} lines but stands at step {start}.",
                    hint="It still takes late uploads, or something else writes to it.",
                )
        except TrackerError:
            finish(opened, exit_code=1)
            raise
        samples, summary = (
            writer_file(run, suffix) if online else None for suffix in ("samples", "summary")
        )
        with translated():
            attempt = run.description.attempt_below(start)
            self._shown = OpenedRun(
                opened,
                RunSummary(summary, run.journal, start, self._remote.summary),
                KeyDisplay(opened, attempt, has_axes=self._settings.attempt_axes),
                ConsoleLines(there.console),
                GrowingTables(opened.summary.__setitem__, samples, start),
                SystemPanels(opened) if self._settings.system_panels else None,
            )
        self._files = ProvenanceFiles(opened)
        if online:
            self._notes = Notes(self._account, run)
            self._view = ProjectView(self._account)
        self._upload = Upload(run.run_id, start, stall_timeout_s=self._settings.stall_timeout_s)
        if not online:
            self._copy = OfflineCopy(_directory(opened), run.run_id, run.journal)
        self.describe(run.description)
        return start

    def write(self, rows: Sequence[Row], /) -> None:
        shown = self._opened()
        run, summary = shown.run, shown.summary
        given = self._copy or self._upload
        given.begin()
        for row in rows:
            summary.learn(row.new_keys)
            if self._view is not None:
                self._view.learn(row.new_keys)
        summary.take(rows)

        def log(row: Row, line: Line) -> None:
            run.log(line, step=row.number, commit=True)

        shown.write(rows, log)
        if rows:
            given.next_row = rows[-1].number + 1
        with translated():
            if changed := summary.changed():
                run.summary.update(changed)

    def describe(self, description: Description, /) -> None:
        """Update the run's metadata. Its group and job type stay those of its opening."""
        shown = self._opened()
        with translated():
            show(shown.run, description)
            if self._notes is not None:
                self._notes.show(description)
            else:
                show_notes(shown.run, description, self._pointer)
            if self._files is not None:
                self._files.show(description.provenance)
        if shown.panels is not None:
            shown.panels.know(description.devices)

    def flush(self, *, timeout_s: float) -> int | None:
        """Query the server until it has all rows, or the timeout. Offline, no row is ever safe."""
        self._opened()
        if self._copy is None:
            return self._upload.wait(self._remote.rows, timeout_s=timeout_s)
        if self._copy.is_stuck():
            # It may hold more rows than any other: then it stays for manual recovery.
            with contextlib.suppress(TrackerError):
                self._finish(exit_code=1)
            self._verify_copy()
            raise TrackerUnavailable("The disk of the offline W&B run is full.")
        return None

    def location(self) -> str:
        run = self._opened().run
        return str((run.url or "") if self._account.online else _directory(run))

    def close(self, *, exit_code: int) -> int | None:
        """Finish the run, end ``wandb-core``, and check that the run is complete."""
        was_open = self._shown is not None
        if was_open:
            if self._view is not None:
                self._view.finish()
            self._finish(exit_code=exit_code)
        if not self._account.online:
            self._verify_copy()
            return None
        return self._upload.wait(self._remote.rows) if was_open else self._upload.safe_row

    def _verify_copy(self) -> None:
        if self._copy is None:
            return
        try:
            self._copy.verify()
        except TrackerUnavailable:
            self._copy.remove_if_needless()
            raise
        self._copy.remove_others()
        self._copy = None

    def _finish(self, *, exit_code: int) -> None:
        shown, self._shown = self._opened(), None
        shown.finish(exit_code)

    def _opened(self) -> OpenedRun:
        if self._shown is None:
            raise TrackerUnavailable(f"The W&B run {self._run_id} is not open.")
        return self._shown


def _init(run: RunInfo, settings: WandbSettings, account: Account) -> "wandb.Run":
    import wandb

    return wandb.init(
        id=run.run_id,
        project=account.project,
        entity=account.entity or None,
        name=(settings.name or run.description.name or run.key.title)[:_MAX_NAME_LENGTH],
        group=(run.description.group or run.key.experiment)[:_MAX_NAME_LENGTH],
        job_type=run.description.job_type[:_MAX_NAME_LENGTH] or None,
        notes="" if account.online else None,  # see ``Notes``
        dir=run.directory,
        config={
            names.RL_EXPERIMENT_NAME: run.key.experiment,
            names.RL_TRIAL_NAME: run.key.trial,
            JOURNAL_KEY: run.journal,
        },
        mode="online" if account.online else "offline",
        resume="allow" if account.online else None,
        reinit="create_new",
        settings=quiet_settings(settings, account),
    )


def _directory(run: "wandb.Run") -> Path:
    return Path(run.settings.sync_dir)
