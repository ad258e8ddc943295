"""Sends a diagnosis as an alert of W&B: an e-mail or a message in Slack."""

from typing import TYPE_CHECKING

from otel_rl.bridge.tracker_keys import DIAGNOSIS_CAUSE, alert_text
from otel_rl.records import Row
from otel_rl.redaction import printable

if TYPE_CHECKING:
    import wandb

__all__ = ["alert", "has_alert"]

_MAX_TITLE_LENGTH = 100


def has_alert(row: Row) -> bool:
    """Return whether the row has a fault."""
    return alert_text(row.labels) is not None


def alert(run: "wandb.Run", row: Row) -> None:
    """Send an alert if the row has a fault. W&B sends one a minute for each title."""
    words = alert_text(row.labels)
    if words is not None:
        title = f"{row.labels.get(DIAGNOSIS_CAUSE, 'diagnosis')} at step {row.step}"
        run.alert(title=title[:_MAX_TITLE_LENGTH], text=printable(words), level="WARN")
