"""An offline W&B run is finished when it is on the disk, and only then is an older copy removed.

wandb-core says nothing of a full disk. What is in the files is read here by the tests' own reader.
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from otel_rl.bridge.delivery.tracker import RunInfo
from otel_rl.bridge.delivery.writer import WriterProcess
from otel_rl.errors import TrackerUnavailable
from otel_rl.records import ExperimentKey, Row
from otel_rl.run_id import run_id
from tests.support.slow import slow_after
from tests.support.wandb_offline import read_offline_run, run_directories

pytestmark = pytest.mark.process

KEY = ExperimentKey("grpo", "full")
ROWS = 1000
COPY_BYTES = 600_000  # of about so many rows

Limit = Callable[[WriterProcess], None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunInfo:
    for variable in [name for name in os.environ if name.startswith(("WANDB_", "NETRC"))]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "disk").mkdir()
    return RunInfo(
        KEY,
        run_id(KEY.experiment, KEY.trial),
        tmp_path / "disk",
        attributes=(("mode", "offline"),),
        scratch=tmp_path / "scratch",
        journal="one",
    )


@contextmanager
def short_files(_: Path) -> Iterator[Limit]:
    """No file of the writer, and of wandb-core, may grow beyond a quarter of a copy."""

    def limit(writer: WriterProcess) -> None:
        assert writer.pid is not None
        tasks = Path(f"/proc/{writer.pid}/task").glob("*/children")
        children = [int(child) for task in tasks for child in task.read_text().split()]
        for pid in (writer.pid, *children):
            _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (COPY_BYTES // 4, most))

    yield limit


@contextmanager
def small_disk(directory: Path) -> Iterator[Limit]:
    """A disk on which others leave room for a quarter of a copy."""
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    size = COPY_BYTES * 2
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)]
    if subprocess.run([mount, *options], check=False, capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")

    def limit(_: WriterProcess) -> None:
        spare = shutil.disk_usage(directory).free - COPY_BYTES // 4
        if spare > 0:
            (directory / "ballast").write_bytes(bytes(spare))

    try:
        yield limit
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture(params=slow_after(1, [short_files, small_disk]), ids=lambda disk: disk.__name__)
def limit(request: pytest.FixtureRequest, run: RunInfo) -> Iterator[Limit]:
    with request.param(run.directory) as limit:
        yield limit


def rows(start: int, stop: int) -> Sequence[Row]:
    return [
        Row(n, n, 1_700_000_000_000_000_000 + n, {f"trainer/{k}": float(n) for k in range(12)})
        for n in range(start, stop)
    ]


def write(run: RunInfo, n_rows: int, limit: Limit = lambda _: None) -> None:
    """One whole life of a writer; the limit comes when the run is open."""
    with WriterProcess("wandb") as writer:
        assert writer.open(run) == 0
        limit(writer)
        for start in range(0, n_rows, 100):
            writer.write(rows(start, min(start + 100, n_rows)))
        writer.flush(timeout_s=0)
        writer.close(exit_code=0)


def copies(run: RunInfo) -> list[tuple[int, int | None]]:
    """Rows and exit code of each copy; the rows are numbered without a gap."""
    found = [read_offline_run(path) for path in run_directories(run.directory, run.run_id)]
    for copy in found:
        assert [row["_step"] for row in copy.history] == list(range(len(copy.history)))
    return [(len(copy.history), copy.exit_code) for copy in found]


@pytest.mark.slow
def test_a_run_is_finished_when_it_was_read_back_and_only_then_an_older_copy_goes(
    run: RunInfo, limit: Limit
) -> None:
    with pytest.raises(TrackerUnavailable) as caught:
        write(run, ROWS, limit)
    ((there, exit_code),) = copies(run)
    assert there < ROWS
    assert exit_code is None
    assert f"has only {there} of {ROWS} rows and no exit record" in str(caught.value)
    assert f"Free space in {run.directory}" in caught.value.hint
    (run.directory / "ballast").unlink(missing_ok=True)
    write(run, ROWS)
    assert copies(run) == [(ROWS, 0)]
    with pytest.raises(TrackerUnavailable):
        write(run, ROWS + 100, limit)
    assert copies(run) == [(ROWS, 0)]
