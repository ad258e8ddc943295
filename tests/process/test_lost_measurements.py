"""A command that ends well, but whose measurements could not be stored, does not exit with 0."""

import sys
import textwrap
from pathlib import Path

import pytest

from tests.process.commands import Finished, clean_environment, otel_rl

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


def run(directory: Path, *, n: int, status: int = 0) -> Finished:
    """Run a program that reports ``n`` KiB at its end, with a journal of 2,000 KiB."""
    script = directory / "train.py"
    script.write_text(textwrap.dedent(PROGRAM))
    room = {"OTEL_RL_BRIDGE__JOURNAL__MAX_BYTES": str(2_000 * KIB)}
    return otel_rl(
        "run", "--experiment", "e", "--tracker", "jsonl", "--",
        sys.executable, script, str(n), str(status),
        cwd=directory,
        env=clean_environment(directory, **room),
    )  # fmt: skip


def test_measurements_that_found_no_room_are_told_and_the_status_is_one(tmp_path: Path) -> None:
    done = run(tmp_path, n=4_000)
    assert "at least 1 request could not be stored and did not come again" in done.err
    assert done.status == 1


def test_the_status_of_a_failed_command_stays(tmp_path: Path) -> None:
    done = run(tmp_path, n=4_000, status=7)
    assert "at least 1 request could not be stored and did not come again" in done.err
    assert done.status == 7


def test_a_command_whose_measurements_found_room_ends_with_its_status(tmp_path: Path) -> None:
    done = run(tmp_path, n=10)
    assert "could not be stored" not in done.err
    assert done.status == 0
