"""Shows run metadata in W&B: config, notes, tags, status, and the provenance of the run."""

import contextlib
import json
import logging
import os
import shlex
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rl.bridge.delivery.texts import storable, storable_text
from otel_rl.bridge.delivery.tracker import RunInfo, writer_file
from otel_rl.bridge.delivery.wandb.account import Account
from otel_rl.bridge.delivery.wandb.server import set_notes
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.errors import TrackerError
from otel_rl.records import Description, Provenance, Table, Value
from otel_rl.redaction import printable

if TYPE_CHECKING:
    import wandb

_log = logging.getLogger(__name__)

_MAX_TAG_LENGTH = 64  # the server's limit; the SDK raises above it

_STATUS = "status"

_CRASH = "crash"

_DEVICES = "gpus"

_HOSTS = "hosts"

_METADATA: Final = "wandb-metadata.json"
_DIFF: Final = "diff.patch"
_PACKAGES: Final = "requirements.txt"


def pointer(run: RunInfo) -> str:
    """Return where a run's page, report and journal are; empty without a local journal."""
    data = (run.scratch or run.directory).absolute()
    if not (data / JOURNAL_FILE).exists():
        return ""
    place, name = shlex.quote(str(data)), shlex.quote(f"{run.key.experiment}/{run.key.trial}")
    return storable_text(
        printable(
            f"otel_rl keeps this run with diagnosis, timeline and samples on "
            f"{socket.gethostname()}, in {data}\n"
            f"page: otel-rl view {place}\n"
            f"report to mail: otel-rl view {name} --data {place} --html run.html",
            keep="\n",
        )
    )


class Notes:
    """Gives an online run its notes, by our own call to the server.

    The SDK would send notes again with each change of the config, over whatever a person has
    written since. So notes are sent once, and only to a run that has none but the pointer. A file
    records which notes were sent: notes that a person has emptied stay empty in the next opening,
    too.
    """

    def __init__(self, account: Account, run: RunInfo) -> None:
        self._account = account
        self._run_id = run.run_id
        self._pointer = pointer(run)
        self._file = writer_file(run, "notes")
        is_there = self._file.exists()
        self._sent = self._file.read_text("utf-8", "replace") if is_there else ""

    def show(self, description: Description) -> None:
        """Send the notes, unless they were sent before or the run has other notes."""
        notes = _notes(os.environ.get("WANDB_NOTES") or description.notes, self._pointer)
        if notes in ("", self._sent):
            return
        try:
            set_notes(self._account, self._run_id, notes, instead_of=("", self._pointer))
        except TrackerError as exc:  # the rows are worth more; they are sent with the next change
            _log.warning("The W&B run %s has no notes yet: %s", self._run_id, exc)
            return
        self._sent = notes
        with contextlib.suppress(OSError):  # on a full disk a person's empty notes may be filled
            self._file.write_text(notes, "utf-8")


def show_notes(run: "wandb.Run", description: Description, where: str) -> None:
    """Set the notes of an offline run that has none but ours; ``where`` is its ``pointer``."""
    notes = _notes(description.notes, where)
    if notes and run.notes != notes and run.notes in (None, "", where):
        run.notes = notes


def _notes(notes: str, where: str) -> str:
    return storable_text("\n\n".join(part for part in (notes, where) if part))


def show(run: "wandb.Run", description: Description) -> None:
    """Update a run's config and tags, and the status and crash in its summary.

    Edits made in W&B stay: tags are only added. For the notes see ``Notes``.
    """
    machines: dict[str, Value] = {_HOSTS: description.hosts} if description.hosts else {}
    show_config(run, {**machines, **description.config, **device_config(description)})
    tags = [tag[:_MAX_TAG_LENGTH] for tag in description.tags if tag]
    known = run.tags or ()
    if not set(tags) <= set(known):
        run.tags = tuple(dict.fromkeys((*known, *tags)))
    run.summary[_STATUS] = str(description.status)
    crash = _crash(description)
    had_crashed = run.summary.get(_CRASH)  # type: ignore[no-untyped-call]  # no hints
    if crash or had_crashed:  # a run that goes on has none any more
        run.summary[_CRASH] = crash


def _crash(description: Description) -> str:
    crash = description.crash
    if crash is None:
        return ""
    words = f"{crash.as_crash}: {crash.message}" if crash.message else crash.as_crash
    return storable_text(printable(words, keep="\n"))


def show_config(run: "wandb.Run", values: Mapping[str, Value]) -> None:
    config = {_key(key): storable(value) for key, value in values.items()}
    if config:
        run.config.update(config, allow_val_change=True)  # type: ignore[no-untyped-call]  # no hints


def device_config(description: Description) -> Mapping[str, Value]:
    devices: dict[str, Value] = {
        prefix: {
            "uuid": device.uuid,
            "host": device.host,
            "name": device.name,
            "model": device.model,
            "workers": device.workers,
        }
        for prefix, device in description.devices.items()
        if not device.is_host
    }
    return {_DEVICES: devices} if devices else {}


def as_table(table: Table) -> "wandb.Table":
    """Convert a table of text samples, whose columns may hold values of any kind."""
    import wandb

    data = [[storable(value) for value in line] for line in table.rows]
    return wandb.Table(columns=[*table.columns], data=data, allow_mixed_types=True)


def _key(name: str) -> str:
    """Return a key that W&B accepts: W&B reserves keys that start with an underscore."""
    name = storable_text(name)
    return name if name and not name.startswith("_") else f"config{name}"


class ProvenanceFiles:
    """Shows command, code and machine of a run, as ``wandb.init`` in the program would.

    The provenance is three files, which W&B shows in its Overview and Files tabs. The machines of
    all workers are in the config.
    """

    def __init__(self, run: "wandb.Run") -> None:
        self._run = run
        self._written: dict[str, str] = {}

    def show(self, provenance: Provenance | None) -> None:
        if provenance is None:
            return
        files = {
            _METADATA: json.dumps(_metadata(provenance), indent=2) + "\n",
            _DIFF: provenance.diff,
            _PACKAGES: "".join(f"{package}\n" for package in provenance.packages),
        }
        for name, text in files.items():
            if text and self._written.get(name) != text:
                path = Path(self._run.dir) / name
                path.write_text(text, "utf-8", "backslashreplace")
                self._run.save(os.fspath(path), base_path=self._run.dir, policy="now")
                self._written[name] = text


def _metadata(of: Provenance) -> Mapping[str, object]:
    program, *arguments = of.command or ("",)
    if program == "-m" and arguments:  # python -m MODULE
        program = f"-m {arguments.pop(0)}"
    found: dict[str, object] = {
        "os": of.system,
        "python": of.runtime,
        "startedAt": datetime.fromtimestamp(of.time_ns / 1e9, UTC).isoformat(),
        "args": arguments,
        "program": program,
        "codePath": program,
        "git": {"remote": of.repository, "commit": of.commit} if of.commit else None,
        "host": of.host,
        "executable": of.executable,
    }
    return {key: value for key, value in found.items() if value}
