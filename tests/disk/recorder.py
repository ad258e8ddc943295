"""A process with a journal of its own, every change of whose files is written down."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.disk.disk import Event, read_log

_SOURCE = Path(__file__).with_name("recorder.c")

_EXIT_TIMEOUT_S = 60.0

Json = Mapping[str, object]


def compiler() -> str | None:
    """The C compiler, if there is one."""
    return shutil.which("cc")


class Recorder:
    """Runs ``tests.disk.child`` under ``recorder.c``. A context manager.

    Args:
        directory: For the library, the log and the journals. Nobody else's.
        synchronous: What the journal's connection really gets for its ``synchronous=FULL``.
    """

    def __init__(self, directory: Path, *, synchronous: str = "FULL") -> None:
        self.directory = directory
        self._log = directory / "log"
        library = directory / "recorder.so"
        subprocess.run(
            [str(compiler()), "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True
        )
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.disk.child", self._log, synchronous],
            env={
                **os.environ,
                "LD_PRELOAD": str(library),
                "RECORDER_DIRECTORY": str(directory),
                "RECORDER_LOG": str(self._log),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=_EXIT_TIMEOUT_S)

    def ask(self, command: str, **arguments: object) -> Json:
        """Have the child do something; its answer.

        Raises:
            RuntimeError: It could not.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        stdin.flush()
        line = stdout.readline()
        answer = json.loads(line) if line else {"error": "the child has died"}
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return dict(answer)

    def events(self) -> Sequence[Event]:
        """What was done to files since the log was begun."""
        return read_log(self._log)
