"""``otel-rl export``: the spans of a run as a file, and what it says where there are none."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from otel_rl.bridge.journal.log import Log
from otel_rl.bridge.journal.runs import Commit, RunStore
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE, SqliteJournal
from otel_rl.bridge.journal.state import encode_keys
from otel_rl.cli.main import main
from otel_rl.diagnose.history.records import Facts, WorkerFacts
from otel_rl.records import ExperimentKey, KeySpec
from tests.support.traces import BEGUN_NS, MS, keep_spans, span, steps_of_a_run

RUN, OTHER = ExperimentKey("grpo", "one"), ExperimentKey("ppo", "two")

Export = Callable[..., tuple[int, str]]


@pytest.fixture
def export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Export:
    def run(*arguments: str) -> tuple[int, str]:
        status = main(["export", *arguments, "--data", str(tmp_path)])
        return status, capsys.readouterr().err

    return run


def spans_of(path: Path) -> list[dict[str, Any]]:
    events = json.loads(path.read_text())["traceEvents"]
    return [event for event in events if event["ph"] == "X"]


def test_a_run_becomes_a_file_and_its_size_is_said(export: Export, tmp_path: Path) -> None:
    keep_spans(tmp_path, RUN, [*steps_of_a_run(range(20))])
    status, said = export("-o", str(tmp_path / "t.json"))
    assert status == 0
    assert "140 spans of 3 workers in steps 0 to 19" in said
    assert "MB" in said
    assert len(spans_of(tmp_path / "t.json")) == 140


def test_some_steps_of_a_run_that_is_named(export: Export, tmp_path: Path) -> None:
    keep_spans(tmp_path, RUN, [*steps_of_a_run(range(20))])
    keep_spans(tmp_path, OTHER, [*steps_of_a_run(range(5))])
    status, said = export("grpo", "--steps", "15:30", "-o", str(tmp_path / "t.json"))
    assert status == 0
    assert "the journal has the spans of steps 0 to 19 only" in said
    assert "in steps 15 to 19" in said
    names = {event["name"] for event in spans_of(tmp_path / "t.json")}
    steps = {event["args"].get("step") for event in spans_of(tmp_path / "t.json")} - {None}
    assert names == {"rl.loop", "train", "weight_push", "generate", "weight_sync"}
    assert min(steps) >= 14


def test_a_journal_that_cannot_be_read_is_said_beside_the_trace(
    export: Export, tmp_path: Path
) -> None:
    keep_spans(tmp_path / "good", RUN, [*steps_of_a_run(range(2))])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / JOURNAL_FILE).write_bytes(b"not a database" * 1000)
    status, said = export("-o", str(tmp_path / "t.json"))
    assert status == 1
    assert "Cannot read the journal" in said
    assert spans_of(tmp_path / "t.json")


def test_standard_output_is_the_trace_alone(
    export: Export, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_spans(tmp_path, RUN, [*steps_of_a_run(range(2))])
    assert main(["export", "--data", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["otherData"]["run"] == "grpo/one"


def test_a_file_named_gz_is_compressed(export: Export, tmp_path: Path) -> None:
    keep_spans(tmp_path, RUN, [*steps_of_a_run(range(2))])
    assert export("-o", str(tmp_path / "t.json.gz"))[0] == 0
    assert json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))["traceEvents"]


def test_queues_and_devices_of_workers_are_counters_and_others_are_not(
    export: Export, tmp_path: Path
) -> None:
    keep_spans(tmp_path, RUN, [*steps_of_a_run(range(3))])
    measured = [WorkerFacts("trainer/0", None, 2, 6.0, 0)]
    facts = Facts(
        BEGUN_NS + 150 * MS, 1, workers={"q": measured, "gpu": measured, "loss": measured}
    )
    keys = [
        KeySpec("q", "rl.generator.queue.depth"),
        KeySpec("gpu", "hw.gpu.utilization"),
        KeySpec("loss", "rl.train.loss"),
    ]
    journal = SqliteJournal(tmp_path)
    history = facts.time_ns, facts.encode()
    RunStore(journal).commit(
        [Commit(RUN, [], 0, b"", added={Log.HISTORY: history, Log.KEYS: (0, encode_keys(keys))})]
    )
    journal.close()
    assert export("-o", str(tmp_path / "t.json"))[0] == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    counters = {e["name"]: e for e in events if e["ph"] == "C"}
    assert counters.keys() == {"q", "gpu"}
    assert counters["q"]["ts"] == 150_000
    assert counters["q"]["args"] == {"value": 3.0}


def test_a_host_whose_clock_was_ahead_is_set_back(export: Export, tmp_path: Path) -> None:
    """By the messages between the hosts: a step cannot use a sample before it is there."""
    spans = [
        span("generate#1", 1_050 * MS, 1_090 * MS, worker="generator-0", host="ahead"),
        span("rl.loop", 100 * MS, 200 * MS, step=1, uses=["generate#1"]),
    ]
    keep_spans(tmp_path, RUN, spans)
    assert export("-o", str(tmp_path / "t.json"))[0] == 0
    times = {event["name"]: event["ts"] for event in spans_of(tmp_path / "t.json")}
    assert times == {"rl.loop": 0, "generate": 60_000}


def test_no_journal_no_run_and_no_such_run_are_told_with_what_to_do(
    export: Export, tmp_path: Path
) -> None:
    status, said = export("-o", "t")
    assert status == 2
    assert "There is no run" in said
    assert "--data" in said
    keep_spans(tmp_path, RUN, [*steps_of_a_run(range(2))])
    status, said = export("nothing", "-o", "t")
    assert status == 2
    assert "There are: grpo/one" in said


def test_a_run_without_spans_and_unknown_steps_are_told_with_what_to_do(
    export: Export, tmp_path: Path
) -> None:
    journal = SqliteJournal(tmp_path)
    RunStore(journal).commit([Commit(OTHER, [], 0, b"")])
    journal.close()
    status, said = export("ppo", "-o", str(tmp_path / "t.json"))
    assert status == 2
    assert "no spans of ppo/two" in said
    assert "OTEL_RL_TRACE_STEPS" in said
    keep_spans(tmp_path, RUN, [*steps_of_a_run(range(5, 9))])
    status, said = export("grpo", "--steps", "100:120", "-o", str(tmp_path / "t.json"))
    assert status == 2
    assert "spans of steps 5 to 8 of grpo/one (got 100:120)" in said
    assert not (tmp_path / "t.json").exists()


def test_chosen_steps_of_the_whole_run_are_there_each_span_once(
    export: Export, tmp_path: Path
) -> None:
    keep_spans(tmp_path, RUN, [*steps_of_a_run([3, 50, 51])], log=Log.CHOSEN)
    keep_spans(tmp_path, RUN, [*steps_of_a_run(range(50, 60))])
    status, said = export("-o", str(tmp_path / "t.json"))
    assert status == 0
    assert len(spans_of(tmp_path / "t.json")) == 11 * 7
    status, said = export("--steps", "3", "-o", str(tmp_path / "t.json"))
    assert status == 0
    assert "only" not in said
    assert {span["args"].get("step") for span in spans_of(tmp_path / "t.json")} == {3, None}
    status, said = export("--steps", "3:52", "-o", str(tmp_path / "t.json"))
    assert "the journal has the spans of steps 3, 50 to 59 only" in said
    status, said = export("--steps", "20", "-o", str(tmp_path / "t.json"))
    assert status == 2
    assert "spans of steps 3, 50 to 59 of grpo/one (got 20:20)" in said
    assert "some steps of the whole run" in said


def test_a_file_that_cannot_be_written_is_told_and_none_is_left(
    export: Export, tmp_path: Path
) -> None:
    keep_spans(tmp_path, RUN, [*steps_of_a_run(range(2))])
    status, said = export("-o", str(tmp_path / "missing" / "t.json"))
    assert status == 2
    assert "-o: cannot write" in said
    status, said = export("-o", str(tmp_path))
    assert status == 2
    assert not list(tmp_path.parent.glob("*.part"))
