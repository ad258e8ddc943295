"""Common use of the W&B SDK: it translates errors, and keeps facts of the machine out of runs.

A run of the bridge's own and a run that it joins get their rows in the same way (``OpenedRun``).
"""

import errno
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from otel_rl.bridge.delivery.texts import ConsoleLines
from otel_rl.bridge.delivery.wandb.account import Account, WandbSettings
from otel_rl.bridge.delivery.wandb.growing_tables import GrowingTables
from otel_rl.bridge.delivery.wandb.rows import KeyDisplay, alert, payload
from otel_rl.bridge.delivery.wandb.summary import RunSummary
from otel_rl.bridge.delivery.wandb.system_panels import SystemPanels
from otel_rl.errors import TrackerRejected, TrackerUnavailable
from otel_rl.records import Row

if TYPE_CHECKING:
    import wandb

Line = dict[str, object]
"""A row as W&B's ``log`` takes it."""

_log = logging.getLogger(__name__)

# Answers that a retry does not change. W&B puts the status into the message only.
_REFUSAL = re.compile(r"\b(400|401|403|404|409|410|422|501)\b|permission denied", re.IGNORECASE)


_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def quiet_settings(settings: WandbSettings, account: Account, **others: object) -> "wandb.Settings":
    """Return the settings common to every run of a bridge, with ``others`` added."""
    import wandb

    newer: dict[str, object] = {
        "finish_timeout": settings.finish_timeout_s,
        "finish_timeout_raises": True,
        # The default raises KeyboardInterrupt when Stop is pressed in the UI. The bridge cannot
        # stop the training, and its rows are still needed.
        "stop_fn": _ignore_stop,
        # Rows are compressed if the server says that it takes that, and not by default.
        "x_file_stream_no_gzip": False,
    }
    return wandb.Settings(
        base_url=account.base_url,
        init_timeout=settings.init_timeout_s,
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
        # Online the journal is the copy; a second one on the disk would be of no use.
        x_skip_transaction_log=account.online,
        x_file_stream_transmit_interval=settings.transmit_interval_s or None,
        # An older W&B has no such settings: a `finish` that hangs ends with its process, the signal
        # of Stop is one that a writer ignores, and rows are sent as they are.
        **{name: value for name, value in newer.items() if name in wandb.Settings.model_fields},
        **others,
    )


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """An open run, with what W&B shows of its rows beside their values. One thread uses it.

    Attributes:
        summary: Summary of the rows, and the time of the first row.
        console: Selects the console lines that the run lacks.
        panels: The run's System panels, unless they are switched off.
    """

    run: "wandb.Run"
    summary: RunSummary
    display: KeyDisplay
    console: ConsoleLines
    samples: GrowingTables
    panels: SystemPanels | None

    def write(self, rows: Sequence[Row], log: Callable[[Row, Line], None]) -> None:
        """Log rows that the summary includes already."""
        with translated():
            for given in rows:
                # Before the row, whose confirmation should not come without them.
                if lines := self.console.of(given):
                    _log_console(self.run, lines)
                row = self.samples.add(given)
                self.display.take(row)
                log(row, payload(row, self.summary.hours(row.time_ns)))
                alert(self.run, row)
                if self.panels is not None:
                    self.panels.send(row)

    def finish(self, exit_code: int) -> None:
        with translated():
            self.samples.show(everything=True)
        finish(self.run, exit_code)


def finish(run: "wandb.Run", exit_code: int) -> None:
    """Finish a run and end wandb-core, which only then writes an offline run's exit record."""
    import wandb

    with translated():
        run.finish(exit_code=exit_code)
        wandb.teardown(exit_code=exit_code)


def _log_console(run: "wandb.Run", lines: Sequence[str]) -> None:
    if hasattr(run, "write_logs"):
        run.write_logs("\n".join(lines))
    else:
        _say_that_console_needs_a_newer_wandb()


@cache
def _say_that_console_needs_a_newer_wandb() -> None:
    _log.warning("Console lines are left out of the W&B run: that needs W&B 0.27 or newer.")


def _ignore_stop() -> None:
    _log.warning("Stop was pressed in the W&B UI. The bridge does not stop training.")


@contextmanager
def translated() -> Iterator[None]:
    """Translate the SDK's exceptions into the two errors of the delivery loop."""
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
    except (ValueError, TypeError) as exc:
        raise TrackerRejected(
            f"W&B does not take a row: {exc}",
            hint="The rows from it on are kept. Please report this.",
        ) from exc
    except (wandb.Error, OSError) as exc:  # TimeoutError and ConnectionResetError are OSErrors
        hint = "Free space on that disk." if getattr(exc, "errno", None) in _NO_ROOM else ""
        raise TrackerUnavailable(f"W&B: {type(exc).__name__}: {exc}.", hint=hint) from exc
