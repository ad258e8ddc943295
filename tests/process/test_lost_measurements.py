"""Lost data is no failure of the command: its status stays, and the last line says what is lost."""

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from otel_rl.run_id import run_id
from tests.faults.disk import SmallDisk, small_disk
from tests.process.commands import Finished, clean_environment, otel_rl
from tests.support.slow import slow_after

pytestmark = pytest.mark.process

# The stock SDK repeats a refused request for as long as its exporter's timeout.
PROGRAM = """
    import os, sys
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = OTLPMetricExporter(timeout=2)
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, 3_600_000)])
    gauge = provider.get_meter("m").create_gauge("g")
    gauge.set(1.0)
    provider.force_flush()
    for n in range(int(sys.argv[1])):
        gauge.set(1.0, {"n": str(n), "ballast": "." * 1000})
    provider.shutdown()
    sys.exit(int(sys.argv[2]))
"""
KIB = 1024


RUN = run_id("e", "default")


def run(directory: Path, *options: str, n: int, status: int = 0) -> Finished:
    """Run a program that reports ``n`` KiB at its end, with a journal of 2,000 KiB."""
    script = directory / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    room = {"OTEL_RL_BRIDGE__JOURNAL__MAX_BYTES": str(2_000 * KIB)}
    return otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", *options, "--",
        sys.executable, script, str(n), str(status),
        cwd=directory,
        env=clean_environment(directory, **room),
    )  # fmt: skip


def status_file(data: Path) -> Mapping[str, Any]:
    content: dict[str, Any] = json.loads((data / "status.json").read_text())
    return content


@pytest.mark.parametrize(
    ("options", "of_command", "status"),
    slow_after(1, [(("--fail-on-loss",), 0, 74), ((), 0, 0), (("--fail-on-loss",), 7, 7)]),
)
def test_measurements_that_found_no_room_are_said_last_and_the_status_is_that_of_the_command(
    tmp_path: Path, options: tuple[str, ...], of_command: int, status: int
) -> None:
    done = run(tmp_path, *options, n=4_000, status=of_command)
    assert done.status == status
    last = done.err.splitlines()[-1]
    assert last.startswith("otel-rl: DATA WAS LOST")
    assert "at least 1 request could not be stored and did not come again" in last
    assert "The journal has reached its bound of 2048000 bytes" in last
    found = status_file(tmp_path / ".otel_rl" / RUN)
    assert (found["exit_status"], found["lost"]) == (of_command, {"not_stored": 1})


@pytest.mark.slow
def test_a_command_whose_measurements_found_room_has_lost_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, "--fail-on-loss", n=10)
    assert "LOST" not in done.err
    assert done.status == 0
    assert status_file(tmp_path / ".otel_rl" / RUN)["lost"] == {}


# It reports, fills the disk of the journal, and reports on.
FILLS = """
    import sys
    import otel_rl

    otel_rl.init(role="trainer")
    otel_rl.log({"loss": 1.0}, step=0)
    otel_rl.flush(timeout_s=60)
    with open(sys.argv[1], "ab", 0) as ballast:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while ballast.write(bytes(size)) == size:
                    pass
            except OSError:
                pass
    for step in range(1, 60):
        otel_rl.log({"loss": 1.0, "text" * 50: 2.0}, step=step)
"""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        if not disk.is_ours:
            pytest.skip("this user may not mount")
        yield disk


def train(directory: Path, *options: str) -> Finished:
    """Run the program with its journal on the small disk, and its rows elsewhere."""
    script = directory / "train.py"
    script.write_text(textwrap.dedent(FILLS))
    elsewhere = {"OTEL_RL_BRIDGE__TRACKER__DIRECTORY": str(directory)}
    data = directory / "disk" / "data"
    return otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--data", data, *options, "--",
        sys.executable, script, directory / "disk" / "ballast",
        cwd=directory,
        env=clean_environment(
            directory, OTEL_RL_EXIT_TIMEOUT="2", OTEL_RL_BRIDGE__STOP_TIMEOUT="5", **elsewhere
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class Filled:
    """A command that has filled the disk of its journal."""

    done: Finished
    directory: Path


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    directory = tmp_path_factory.mktemp("filled")
    with small_disk(directory / "disk") as disk:
        if not disk.is_ours:
            pytest.skip("this user may not mount")
        yield Filled(train(directory), directory)


def test_a_disk_that_fills_while_a_command_trains_is_no_failure_of_it(filled: Filled) -> None:
    done = filled.done
    assert done.status == 0, done.err
    assert "Traceback" not in done.err
    last = done.err.splitlines()[-1]
    assert last.startswith("otel-rl: DATA WAS LOST")
    assert "disk is full" in last
    assert "nothing was reported" not in done.err
    found = status_file(filled.directory / "disk" / "data")
    assert found["exit_status"] == 0
    assert found["lost"]["not_stored"] > 0


def test_a_disk_with_little_room_is_said_before_the_command_starts(filled: Filled) -> None:
    said = filled.done.err.splitlines()
    warning = next(line for line in said if "nearly full" in line)
    assert f"The disk of {filled.directory}/disk/data is nearly full: 6" in warning
    assert "MiB free" in warning
    assert said.index(warning) < said.index(next(line for line in said if "OTLP on" in line))


@pytest.mark.slow
@pytest.mark.parametrize(("options", "status"), [(("--fail-on-loss",), 74), ((), 0)])
def test_a_disk_that_is_full_at_the_start_does_not_keep_a_command_from_its_work(
    tmp_path: Path, disk: SmallDisk, options: tuple[str, ...], status: int
) -> None:
    (tmp_path / "disk" / "data").mkdir()
    assert disk.fill()
    done = train(tmp_path, *options)
    assert done.status == status, done.err
    first, *_, last = done.err.splitlines()
    assert "No space left on device" in first
    assert "CMD runs, and nothing that it reports is kept" in first
    assert last.startswith("otel-rl: DATA WAS LOST")
    assert "Free disk space" in last
    assert ("The exit status is 74" in last) == (status == 74)
