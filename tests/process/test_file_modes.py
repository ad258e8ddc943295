"""Files of a run hold prompts, answers and settings: only their owner may read them."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.commands import OTEL_RL, TIMEOUT_S, clean_environment

pytestmark = pytest.mark.process

PROGRAM = """
import otel_rl

print("a line of the console")
otel_rl.init(experiment="private", role="trainer")
for step in range(3):
    otel_rl.log({"loss": 1.0}, step=step)
    otel_rl.log_samples([{"prompt": "2+2", "answer": "4", "reward": 1.0}], step=step)
"""


def readable_by_others(directory: Path) -> list[str]:
    others = stat.S_IRWXG | stat.S_IRWXO
    return [
        f"{path.relative_to(directory)} {stat.filemode(path.lstat().st_mode)}"
        for path in sorted(directory.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & others
    ]


def test_whatever_a_bridge_creates_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """With any umask, and in a directory that others may read."""
    (tmp_path / "program.py").write_text(PROGRAM)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)

    done = subprocess.run(
        [
            *OTEL_RL, "run", "--data", shared / "deep" / "data", "--tracker", "jsonl",
            "--tracker", "tensorboard", "--tracker", "wandb", "--", sys.executable, "program.py",
        ],
        cwd=tmp_path,
        env=clean_environment(
            tmp_path,
            OTEL_RL_CONSOLE="",
            OTEL_RL_BRIDGE__TRACKER__DIRECTORY=str(shared / "of" / "trackers"),
            OTEL_RL_BRIDGE__ARCHIVE__ENABLED="true",
            OTEL_RL_BRIDGE__ARCHIVE__DIRECTORY=str(shared / "an" / "archive"),
        ),
        umask=0,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    suffixes = {path.suffix for path in shared.rglob("*") if path.is_file()}
    assert {".jsonl", ".json", ".parquet", ".wandb", ".db", ".log"} <= suffixes, suffixes
    assert any("tfevents" in path.name for path in shared.rglob("*"))
    assert readable_by_others(shared) == []
