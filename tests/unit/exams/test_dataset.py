"""The data set says what the exam says: read back, it is answered alike; its scorer can fail."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from exams.dataset.__main__ import main, read
from exams.dataset.answers import answered
from exams.dataset.score import baselines, scored, table
from exams.dataset.write import names, written
from exams.first.case import draw, examine
from exams.first.judge import Look
from otel_rl.diagnose.engine import diagnose
from otel_rl.diagnose.history.run_history import RunHistory
from otel_rl.diagnose.result import Diagnosis, Verdict
from tests.support.slow import slow_after

ROOT = Path(__file__).parents[3]
SEED = 430007

STRAGGLER: Mapping[str, Any] = {
    "name": "slow worker",
    "kinds": ["straggler"],
    "role": "actor",
    "worker": "actor/2",
    "step": 30,
}
LABELS: Sequence[Mapping[str, Any]] = [
    {"case": "0000", "faults": [], "changes": ["batch x2"]},
    {"case": "0001", "faults": [STRAGGLER], "changes": []},
]
RIGHT: Mapping[str, Any] = {"kind": "straggler", "role": "actor", "worker": "actor/2", "step": 31}


def only_at_the_end(history: RunHistory, /, *, passed: bool, silent_s: float) -> Diagnosis:
    if passed:
        return diagnose(history, passed=True, silent_s=silent_s)
    return Diagnosis(history.first, history.last, Verdict.HEALTHY, [], [], None)


@pytest.mark.parametrize("number", slow_after(1, [3, 5, 7, 8]))
def test_what_is_read_back_is_answered_as_the_exam_does(tmp_path: Path, number: int) -> None:
    """A slow worker of a stock SDK, a healthy run, a crash, and a wrong clock."""
    looks: list[Look] = []
    examine(draw(SEED, number), only_at_the_end, looks.append)
    case, label = written(tmp_path, (number, "0000"), seed=SEED)
    answer = json.loads(json.dumps(answered(tmp_path, case)))
    assert [(one["kind"], one["worker"], one["step"]) for one in answer["causes"]] == [
        (one.kind, one.worker, one.since) for one in looks[-1].causes
    ]
    found = scored([label], [answer])
    assert found["first cause right"][0] == len(label["faults"])


def test_the_name_of_a_case_does_not_tell_whether_it_is_healthy() -> None:
    """Of the numbers, every fifth is."""
    healthy = [int(name) for number, name in names(SEED, 100) if number % 5 == 0]
    assert len({place % 5 for place in healthy}) == 5
    assert {name for _, name in names(SEED, 100)} == {f"{number:04d}" for number in range(100)}


def test_the_tables_have_what_the_requests_have(tmp_path: Path) -> None:
    written(tmp_path, (3, "0003"), seed=SEED)
    requests = [*read(tmp_path / "otlp" / "0003.jsonl")]
    spans: list[Mapping[str, Any]] = [
        span
        for request in requests
        for of in request.get("resourceSpans", ())
        for scope in of["scopeSpans"]
        for span in scope["spans"]
    ]
    rows = parquet.read_table(tmp_path / "parquet" / "spans" / "0003.parquet").to_pylist()
    assert [row["span_id"] for row in rows] == [span["spanId"] for span in spans]
    assert {len(span["traceId"]) for span in spans} == {32}
    metrics = parquet.read_table(tmp_path / "parquet" / "metrics" / "0003.parquet").to_pylist()
    assert {row["kind"] for row in metrics} <= {"gauge", "sum", "histogram"}
    assert any(row["step"] is not None and row["value"] is not None for row in metrics)


@pytest.mark.slow
@pytest.mark.process
def test_one_command_writes_it_with_a_card_and_the_scorer_reads_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["write", str(tmp_path), "--seed", str(SEED), "--cases", "1", "--jobs", "1"]
    subprocess.run([sys.executable, "-m", "exams.dataset", *words], cwd=ROOT, check=True)
    card = (tmp_path / "README.md").read_text()
    assert f"--seed {SEED} --cases 1" in card
    assert '{"case": "0001", "causes": [{"kind"' in card
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"case": "0000", "causes": [{"kind": "nan"}]}\n')
    main(["score", str(tmp_path / "labels.jsonl"), str(answers)])
    out = capsys.readouterr().out
    assert "| healthy runs with an alarm | 1 of 1:" in out
    assert "flag none" in out


def test_a_right_answer_counts_in_each_row_and_a_wrong_one_in_none() -> None:
    assert scored(LABELS, [{"case": "0001", "causes": [RIGHT]}]) == {
        "first cause right": (1, 1),
        "its worker": (1, 1),
        "its first step, within three": (1, 1),
        "both of two faults": (0, 0),
        "healthy runs with an alarm": (0, 1),
    }
    wrong = [{**RIGHT, "kind": "nan"}, RIGHT]
    found = scored(LABELS, [{"case": one["case"], "causes": wrong} for one in LABELS])
    assert found["first cause right"] == (0, 1)
    assert found["healthy runs with an alarm"] == (1, 1)


def test_those_who_look_at_nothing_have_no_worker_and_all_alarms_or_none() -> None:
    found = {name: scored(LABELS, answers) for name, answers in baselines(LABELS).items()}
    assert [of["healthy runs with an alarm"] for of in found.values()] == [(1, 1), (0, 1)]
    assert [of["first cause right"] for of in found.values()] == [(1, 1), (0, 1)]
    assert all(of["its worker"] == (0, 1) for of in found.values())
    assert table(found).startswith("| | flag every run (straggler) | flag none |")


@pytest.mark.parametrize("cases", [["0009"], ["0001", "0001"]])
def test_answers_of_no_case_are_refused(cases: list[str]) -> None:
    with pytest.raises(ValueError, match="no such case, or answered twice"):
        scored(LABELS, [{"case": case, "causes": []} for case in cases])
