"""Writes each run to Weights & Biases: offline without a key, online with one.

Row n is W&B's ``_step`` n, logged in one call. That makes the row number an idempotency key: a
resumed run says at which step it stands, and what it lacks is logged again. ``define_metric``
makes the training step the axis of every chart.

Online, the server is the tracker. Rows are safe when its line count says so.

Offline, a file is the tracker, and such a file cannot be continued: every way of resuming starts at
step 0, and a crash loses what the SDK had in memory. So nothing in it counts as safe, ``open`` says
0, and the whole run is written anew from the journal into a new directory. When that is finished,
older directories of the run with no more rows of this journal are removed, and one is left. Upload
it with ``wandb sync`` after the run is over: W&B appends a directory that it syncs a second time.

``wandb`` is shared machinery (threads, a subprocess, exit hooks), so one process holds one run.
"""

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from otel_rl.bridge.track import RunInfo
from otel_rl.bridge.track.wandb_account import Account, WandbSettings, find_account
from otel_rl.bridge.track.wandb_api import JOURNAL_KEY, RemoteRun, ask
from otel_rl.errors import ConfigError, TrackerError, TrackerRejected, TrackerUnavailable
from otel_rl.records import ExperimentKey, Row
from otel_rl.semconv import names

if TYPE_CHECKING:
    import wandb

__all__ = ["LEFT_OUT", "WandbTracker"]

LEFT_OUT = "otel_rl/bridge/values/left_out"
"""Key of the number of values of a row that W&B has no room for."""

_log = logging.getLogger(__name__)

_STEP = "step"
_POLICY_VERSION = "policy_version"

_MAX_NAME_LENGTH = 128  # the server's limit for the names of runs and groups

# wandb-core's own limit for a line, less what the SDK and we add to a row.
_MAX_LINE_BYTES = (10 << 20) - (100 << 10) - 1024
_MAX_CHARACTER_BYTES = 6  # \u003c
_VALUE_BYTES = 32  # a double has at most 24 digits and signs; quotes, colon and comma

_QUERY_TIMEOUT_S = 10.0  # for one question to the server; it is asked again
_POLL_S = 0.5  # between two questions while somebody waits for the answer
_SETTLE_S = 1.0  # an answer from a replica of the server's database may be this old

_ROWS_FILE = "otel_rl.rows"  # how many there are, and from which journal

# Answers that a retry does not change. W&B puts the status into the message only.
_REFUSAL = re.compile(r"\b(400|401|403|404|409|410|422|501)\b|permission denied", re.IGNORECASE)


class WandbTracker:
    """One W&B run. See the module."""

    def __init__(self) -> None:
        self._settings = WandbSettings()
        self._account = Account(online=False, base_url="", project="", entity="")
        self._run: wandb.Run | None = None
        self._run_id = ""
        self._journal = ""
        self._next_row = 0
        self._safe_row = 0
        # Since when there is a row that the server does not have.
        self._waiting_since = 0.0

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
        with _translated():
            self._run = _init(run, self._settings, self._account)
            self._run.define_metric("*", step_metric=_STEP)
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
        self._next_row = self._safe_row = start  # offline the latter stays 0
        self._note_rows()
        return start

    def write(self, rows: Sequence[Row], /) -> None:
        """Log each row in one call at its own step."""
        run = self._opened()
        if self._safe_row == self._next_row:
            self._waiting_since = time.monotonic()
        for row in rows:
            with _translated():
                run.log(_payload(row), step=row.number, commit=True)
            self._next_row = row.number + 1

    def flush(self, *, timeout_s: float) -> int | None:
        """Ask the server what it has, until that is all. Offline, nothing is ever safe."""
        self._opened()
        self._note_rows()
        if not self._account.online:
            return None
        deadline = time.monotonic() + timeout_s
        while self._confirm() < self._next_row and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self._safe_row

    def location(self) -> str:
        """The URL of the run, or the path of its directory."""
        run = self._opened()
        return str((run.url or "") if self._account.online else _directory(run))

    def close(self, *, exit_code: int) -> int | None:
        """Finish the run and end ``wandb-core``."""
        if self._run is None:
            return self._safe_row if self._account.online else None
        directory = _directory(self._run)
        self._note_rows()
        self._finish(exit_code=exit_code)
        if not self._account.online:
            _sync_to_disk(directory)
            _remove_older(directory, self._run_id)
            return None
        while self._confirm() < self._next_row:
            time.sleep(_POLL_S)
        return self._safe_row

    def _finish(self, *, exit_code: int) -> None:
        import wandb

        run, self._run = self._opened(), None
        with _translated():
            run.finish(exit_code=exit_code)
            # Returns when wandb-core has ended: only then is the exit record in the file for sure.
            wandb.teardown(exit_code=exit_code)

    def _confirm(self) -> int:
        """The first row that the server does not have.

        Raises:
            TrackerUnavailable: It has taken none for too long.
            TrackerRejected: It refuses the credentials.
        """
        now = time.monotonic()
        try:
            lines = self._ask().lines
        except TrackerUnavailable as exc:
            # wandb-core keeps the rows and tries for itself; ask again.
            lines, reason = self._safe_row, str(exc)
        else:
            reason = "Its answers say that it is well."
        if lines > self._next_row:
            raise TrackerUnavailable(
                f"The W&B run {self._run_id} has {lines} lines after {self._next_row} rows.",
                hint="Something else writes to it. Give the trial another name.",
            )
        if lines > self._safe_row or lines == self._next_row:
            self._safe_row, self._waiting_since = lines, now
        elif now - self._waiting_since > self._settings.stall_timeout_s:
            raise TrackerUnavailable(
                f"W&B has taken no row of run {self._run_id} for "
                f"{now - self._waiting_since:.0f} s ({self._next_row - lines} are waiting). "
                f"{reason}"
            )
        return self._safe_row

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

    def _note_rows(self) -> None:
        if self._run is not None and not self._account.online:
            note = f"{self._next_row} {self._journal}\n"
            (_directory(self._run) / _ROWS_FILE).write_text(note)

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
        group=run.key.experiment[:_MAX_NAME_LENGTH],
        dir=run.directory,
        config={
            names.RL_EXPERIMENT_NAME: run.key.experiment,
            names.RL_TRIAL_NAME: run.key.trial,
            JOURNAL_KEY: run.journal,
        },
        mode="online" if account.online else "offline",
        resume="allow" if account.online else None,
        reinit="create_new",
        settings=wandb.Settings(
            base_url=account.base_url,
            init_timeout=settings.init_timeout_s,
            finish_timeout=settings.finish_timeout_s,
            finish_timeout_raises=True,
            # The default raises KeyboardInterrupt when somebody presses Stop in the UI. Training
            # is not ours to stop, and its rows are still wanted.
            stop_fn=_ignore_stop,
            silent=True,
            console="off",
            symlink=False,
            # The run describes the training, not the machine and checkout of the bridge.
            disable_git=True,
            disable_code=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
            # Online the journal is the copy; a second one on the disk would serve nobody.
            x_skip_transaction_log=account.online,
            x_file_stream_transmit_interval=settings.transmit_interval_s or None,
        ),
    )


def _ignore_stop() -> None:
    _log.warning("Stop was pressed in the W&B UI. The bridge does not stop training.")


def _name(key: ExperimentKey) -> str:
    return key.experiment if key.trial == ExperimentKey("").trial else str(key)


def _payload(row: Row) -> dict[str, float]:
    payload = {_key(name): value for name, value in row.values.items()}
    characters = sum(map(len, payload))
    if characters * _MAX_CHARACTER_BYTES + len(payload) * _VALUE_BYTES > _MAX_LINE_BYTES:
        payload = _fitting(row.number, payload)
    payload[_STEP] = row.step
    if row.policy_version is not None:
        payload[_POLICY_VERSION] = row.policy_version
    payload["_timestamp"] = row.time_ns / 1e9
    return payload


def _fitting(number: int, payload: dict[str, float]) -> dict[str, float]:
    """As much of a row as W&B takes, and how much that is not.

    W&B leaves out a longer line without an error, and every line after it would take the place of
    the one before.
    """
    fitting: dict[str, float] = {}
    room = _MAX_LINE_BYTES
    for key, value in payload.items():
        room -= len(json.dumps(key)) + 5 * sum(map(key.count, "<>&")) + _VALUE_BYTES
        if room < 0:
            break
        fitting[key] = value
    left_out = len(payload) - len(fitting)
    if left_out:
        _log.error("Row %d is too long for W&B: %d values are left out.", number, left_out)
        fitting[LEFT_OUT] = left_out
    return fitting


@lru_cache(maxsize=16_384)
def _key(name: str) -> str:
    """A key that W&B takes. A row that it refuses would be a hole in the run.

    W&B raises on a lone surrogate, and overwrites or ignores empty keys and those that start with
    an underscore.
    """
    name = name.encode("utf-8", "backslashreplace").decode()
    return name if name and not name.startswith("_") else f"metric{name}"


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what the SDK raises into the two errors that the delivery loop knows."""
    import wandb
    from wandb.errors import AuthenticationError, CommError, UsageError

    try:
        yield
    except (AuthenticationError, UsageError) as exc:
        raise TrackerRejected(
            f"W&B refuses the run: {exc}", hint="Check the API key, the entity and the project."
        ) from exc
    except CommError as exc:
        if _REFUSAL.search(str(exc)):
            raise TrackerRejected(
                f"W&B refuses the run: {exc}", hint="Check the entity and the project."
            ) from exc
        raise TrackerUnavailable(f"W&B cannot be reached: {exc}") from exc
    except (wandb.Error, OSError) as exc:  # TimeoutError and ConnectionResetError are OSErrors
        raise TrackerUnavailable(f"W&B: {type(exc).__name__}: {exc}") from exc


def _directory(run: "wandb.Run") -> Path:
    return Path(run.settings.sync_dir)


def _sync_to_disk(directory: Path) -> None:
    for path in (*directory.glob("*.wandb"), directory):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _remove_older(directory: Path, run_id: str) -> None:
    """Leave one directory of the run: this one, unless an older one has more or other rows.

    An older one has more if the bridge was told to stop before it had written the run anew, and
    others if they are of another journal.
    """
    rows, journal = _noted_rows(directory)
    for older in directory.parent.glob(f"offline-run-*-{run_id}*"):
        older_rows, older_journal = _noted_rows(older)
        if older != directory and older_rows <= rows and older_journal in {journal, None}:
            shutil.rmtree(older, ignore_errors=True)


def _noted_rows(directory: Path) -> tuple[int, str | None]:
    try:
        rows, _, journal = (directory / _ROWS_FILE).read_text().strip().partition(" ")
        return int(rows), journal
    except (OSError, ValueError):
        return 0, None  # it did not live to its first flush
