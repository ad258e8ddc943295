"""What earlier calls of ``otel-rl replay`` have finished, noted beside each journal.

A tracker that tells its position need not be asked again. An offline W&B run has none: without this
note each replay would make a new directory, which ``wandb sync`` uploads a second time.
"""

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from otel_rl.bridge.private_files import open_private
from otel_rl.records import ExperimentKey

__all__ = ["Replayed"]

_FILE: Final = "replayed.json"

# Variables that say where a tracker is.
_PLACES: Final = ("WANDB_", "MLFLOW_", "TRACKIO_", "HF_")


class Replayed:
    """Which runs are finished in which tracker. Any thread may call any method.

    Args:
        options: Of the trackers: other ones are another place.
        enabled: Whether the files count.
    """

    def __init__(self, options: Mapping[str, str], *, enabled: bool = True) -> None:
        self._enabled = enabled
        place = [
            sorted(options.items()),
            sorted((name, v) for name, v in os.environ.items() if name.startswith(_PLACES)),
        ]
        self._place = hashlib.sha256(json.dumps(place).encode()).hexdigest()[:16]
        self._lock = threading.Lock()  # guards the files

    def has(self, directory: Path | None, tracker: str, key: ExperimentKey, mark: str) -> bool:
        """Return whether the run is finished, with as many rows and the status of ``mark``."""
        if directory is None or not self._enabled:
            return False
        with self._lock:
            return _read(directory).get(self._name(tracker, key)) == mark

    def note(self, directory: Path | None, tracker: str, key: ExperimentKey, mark: str) -> None:
        if directory is None:
            return
        path = directory / _FILE
        new = path.with_suffix(".json.new")
        with self._lock:
            known = {**_read(directory), self._name(tracker, key): mark}
            try:
                with open(new, "w", encoding="utf-8", opener=open_private) as file:
                    json.dump(known, file)
                new.replace(path)
            except OSError:
                # Of a directory that is only read: a tracker is asked again, and an offline run of
                # W&B is made anew.
                return

    def _name(self, tracker: str, key: ExperimentKey) -> str:
        return f"{tracker} {self._place} {json.dumps([key.experiment, key.trial])}"


def _read(directory: Path) -> dict[str, object]:
    try:
        found = json.loads((directory / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
