"""Writes each run to Weights & Biases: offline without a key, online with one.

Row n is W&B's ``_step`` n, logged in one call. That makes the row number an idempotency key: a
resumed run says at which step it stands, and what it lacks is logged again. ``define_metric``
makes the training step the axis of every chart.

Online, the server is the tracker. Rows are safe when its line count says so.

Offline, a file is the tracker, and such a file cannot be continued: every way of resuming starts at
step 0, and a crash loses what the SDK had in memory. So nothing in it counts as safe, ``open`` says
0, and the whole run is written anew from the journal into a new directory. When that is finished
and was read back from the disk (``wandb_copies``), older directories of the run with no more rows
of this journal are removed, and one is left. Upload it with ``wandb sync`` after the run is over:
W&B appends a directory that it syncs a second time.

``wandb`` is shared machinery (threads, a subprocess, exit hooks), so one process holds one run.
"""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otel_rl.bridge.track import RunInfo
from otel_rl.bridge.track.wandb_about import show
from otel_rl.bridge.track.wandb_account import Account, WandbSettings, find_account
from otel_rl.bridge.track.wandb_alerts import alert
from otel_rl.bridge.track.wandb_api import JOURNAL_KEY, RemoteRun, ask
from otel_rl.bridge.track.wandb_copies import OfflineCopy, check_room
from otel_rl.bridge.track.wandb_rows import STEP, payload
from otel_rl.bridge.track.wandb_sdk import FILE_FLUSH_S, quiet_settings, translated
from otel_rl.bridge.track.wandb_system import SystemPanels
from otel_rl.bridge.track.wandb_upload import Upload
from otel_rl.errors import ConfigError, TrackerError, TrackerRejected, TrackerUnavailable
from otel_rl.records import Description, ExperimentKey, Row
from otel_rl.semconv import names

if TYPE_CHECKING:
    import wandb

__all__ = ["WandbTracker"]

_MAX_NAME_LENGTH = 128  # the server's limit for the names of runs and groups

_QUERY_TIMEOUT_S = 10.0  # for one question to the server; it is asked again
_SETTLE_S = 1.0  # an answer from a replica of the server's database may be this old


# wandb-core writes what it has this often, so a row may rightly take as long to be in the file.
_MIN_STALL_S = 4 * FILE_FLUSH_S


class WandbTracker:
    """One W&B run. See the module."""

    def __init__(self) -> None:
        self._settings = WandbSettings()
        self._account = Account(online=False, base_url="", project="", entity="")
        self._run: wandb.Run | None = None
        self._panels: SystemPanels | None = None
        self._run_id = ""
        self._journal = ""
        self._upload = Upload("", 0, stall_timeout_s=0)
        self._copy: OfflineCopy | None = None  # of an offline run, until it is verified

    def open(self, run: RunInfo, /) -> int:
        """Create the run, or resume it online and start it anew offline."""
        self._run_id = run.run_id
        try:
            self._settings = WandbSettings.parse(dict(run.attributes))
            self._account = find_account(self._settings, os.environ)
        except ConfigError as exc:
            raise TrackerRejected(exc.args[0], hint=exc.hint) from exc
        self._journal = run.journal
        # Asked first, because a server that is away costs `init` its whole timeout and then some.
        lines = self._settled_lines() if self._account.online else 0
        if not self._account.online:
            check_room(run.directory / "wandb", run.run_id, run.journal)
        with translated():
            self._run = _init(run, self._settings, self._account)
            self._run.define_metric("*", step_metric=STEP)
            self._panels = SystemPanels(self._run) if self._settings.system_panels else None
        # `run.step` is 0 after a resume until the first log.
        start = self._run.starting_step
        try:
            if start != lines or not self._is_settled_at(lines):
                raise TrackerUnavailable(
                    f"The W&B run {run.run_id} had {lines} lines but stands at step {start}.",
                    hint="It still takes late uploads, or something else writes to it.",
                )
        except TrackerError:
            self._finish(exit_code=1)
            raise
        self._upload = Upload(run.run_id, start, stall_timeout_s=self._settings.stall_timeout_s)
        if not self._account.online:
            self._copy = OfflineCopy(
                _directory(self._run),
                run.run_id,
                run.journal,
                stall_timeout_s=max(self._settings.stall_timeout_s, _MIN_STALL_S),
            )
        self.describe(run.description)
        return start

    def write(self, rows: Sequence[Row], /) -> None:
        """Log each row in one call at its own step."""
        run = self._opened()
        given = self._copy or self._upload
        given.begin()
        for row in rows:
            with translated():
                run.log(payload(row), step=row.number, commit=True)
                alert(run, row)
            if self._panels is not None:
                self._panels.send(row)
            given.next_row = row.number + 1

    def describe(self, description: Description, /) -> None:
        """Update the run. Its group and job type are those that were known when it was opened."""
        with translated():
            show(self._opened(), description)
        if self._panels is not None:
            self._panels.know(description.devices)

    def flush(self, *, timeout_s: float) -> int | None:
        """Ask the server what it has, until that is all. Offline, nothing is ever safe."""
        self._opened()
        if self._copy is None:
            return self._upload.wait(self._lines, timeout_s=timeout_s)
        try:
            self._copy.check_progress()
        except TrackerUnavailable:
            # It may hold more rows than any other: then it is left for a person.
            with contextlib.suppress(TrackerError):
                self._finish(exit_code=1)
            self._copy.remove_if_needless()
            raise
        return None

    def location(self) -> str:
        """The URL of the run, or the path of its directory."""
        run = self._opened()
        return str((run.url or "") if self._account.online else _directory(run))

    def close(self, *, exit_code: int) -> int | None:
        """Finish the run, end ``wandb-core``, and look whether all of it is there."""
        was_open = self._run is not None
        if was_open:
            self._finish(exit_code=exit_code)
        if not self._account.online:
            self._verify_copy()
            return None
        return self._upload.wait(self._lines) if was_open else self._upload.safe_row

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
        import wandb

        run, self._run = self._opened(), None
        with translated():
            run.finish(exit_code=exit_code)
            # Returns when wandb-core has ended: only then is the exit record in the file for sure.
            wandb.teardown(exit_code=exit_code)

    def _lines(self) -> int:
        return self._ask().lines

    def _settled_lines(self) -> int:
        """The line count of a run before `init`, so old that no later answer can be lower.

        The SDK numbers rows from one answer of the server and places them by another. If an upload
        of a writer that was killed lands in between, a row would take the line of an earlier one.
        So the count is asked long enough before `init`, and again long enough after it: if it is
        the same, so was every answer that `init` has got.
        """
        lines = self._ask_who_wrote()
        if not lines:
            return 0
        time.sleep(_SETTLE_S)
        if self._ask().lines != lines:
            raise TrackerUnavailable(f"The W&B run {self._run_id} still takes late uploads.")
        return lines

    def _is_settled_at(self, lines: int) -> bool:
        """The second half of ``_settled_lines``, after `init`."""
        if not self._account.online:
            return True
        time.sleep(_SETTLE_S)
        return self._ask_who_wrote() == lines

    def _ask_who_wrote(self) -> int:
        """The line count of a run, whose lines are ours.

        Raises:
            TrackerRejected: They are rows of another journal. Ours would follow them.
        """
        remote = self._ask()
        if remote.lines and self._journal and remote.journal != self._journal:
            raise TrackerRejected(
                f"The W&B run {self._run_id} has {remote.lines} rows of another journal.",
                hint="Give the trial another name, or start the bridge with the data directory "
                "that the run was written from.",
            )
        return remote.lines

    def _ask(self) -> RemoteRun:
        return ask(self._account, self._run_id, timeout_s=_QUERY_TIMEOUT_S)

    def _opened(self) -> "wandb.Run":
        if self._run is None:
            raise TrackerUnavailable(f"The W&B run {self._run_id} is not open.")
        return self._run


def _init(run: RunInfo, settings: WandbSettings, account: Account) -> "wandb.Run":
    import wandb

    return wandb.init(
        id=run.run_id,
        project=account.project,
        entity=account.entity or None,
        name=_name(run.key)[:_MAX_NAME_LENGTH],
        group=(run.description.group or run.key.experiment)[:_MAX_NAME_LENGTH],
        job_type=run.description.job_type[:_MAX_NAME_LENGTH] or None,
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


def _name(key: ExperimentKey) -> str:
    return key.experiment if key.trial == ExperimentKey("").trial else str(key)


def _directory(run: "wandb.Run") -> Path:
    return Path(run.settings.sync_dir)
