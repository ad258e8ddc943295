"""What both machines of this directory have in common: lives that end with a loss of power."""

import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from otel_rl.bridge.journal.sqlite import SqliteJournal
from tests.disk.disk import rebuild
from tests.disk.recorder import Json, Recorder


@dataclass(slots=True)
class Life:
    """One journal in a recorder, from the start on some files to a loss of power.

    Attributes:
        recorder: Where the journal is.
        files: Name and content of what is there at the start.
        end: Length of the log when the last command had returned.
    """

    recorder: Recorder
    files: Mapping[str, bytes] = field(default_factory=dict)
    end: int = 0
    _directory: Path = field(init=False)

    def __post_init__(self) -> None:
        self._directory = _fresh(self.recorder.directory / "life", self.files)
        self.ask("open", directory=str(self._directory))

    def ask(self, command: str, **arguments: object) -> Json:
        """Have the journal's process do something."""
        answer = self.recorder.ask(command, **arguments)
        assert isinstance(answer["end"], int)
        self.end = answer["end"]
        return answer

    def fail_power(
        self, back: int, seed: int, check: Callable[[SqliteJournal, int], None]
    ) -> "Life":
        """Lose the power ``back`` changes of files ago; the next life begins with what is left.

        Args:
            back: Fewer than there were.
            seed: Decides what is left.
            check: Is given the journal on what is left, and the length of the log at the moment of
                the loss.
        """
        events = self.recorder.events()
        self.recorder.ask("close")
        events = events[: max(1, len(events) - back)]
        files = rebuild(self.files, events, self._directory, random.Random(seed))
        journal = SqliteJournal(_fresh(self.recorder.directory / "check", files))
        try:
            check(journal, events[-1].end)
        finally:
            journal.close()
        # Not with what the check has made of it: the power may fail again before the first thing
        # that the journal does is over.
        return Life(self.recorder, files)


def _fresh(directory: Path, files: Mapping[str, bytes]) -> Path:
    """The directory with these files and nothing else."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return directory
