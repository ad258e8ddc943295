"""Shows command, code and machine of a run in W&B, as ``wandb.init`` in the program would.

Three files of the run, which W&B shows in its Overview and Files tabs: ``wandb-metadata.json``,
``diff.patch`` and ``requirements.txt``. The machines of all workers are in the config.
"""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_rl.records import Provenance

if TYPE_CHECKING:
    import wandb

__all__ = ["ProvenanceFiles"]

_METADATA: Final = "wandb-metadata.json"
_DIFF: Final = "diff.patch"
_PACKAGES: Final = "requirements.txt"


class ProvenanceFiles:
    """Writes the files of one run, each when it is new or another.

    Args:
        run: Opened.
    """

    def __init__(self, run: "wandb.Run") -> None:
        self._run = run
        self._written: dict[str, str] = {}

    def show(self, provenance: Provenance | None) -> None:
        """Write the provenance of the run.

        Raises:
            OSError: The directory of the run cannot be written to.
        """
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
