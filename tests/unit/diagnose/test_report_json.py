"""JSON of a diagnosis: its published schema, and what each cause tells."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from otel_rl.cli.main import main
from otel_rl.diagnose.places import Place, with_places
from otel_rl.diagnose.render import in_words
from otel_rl.diagnose.report_json import as_json
from otel_rl.diagnose.result import Cause, Diagnosis, Evidence, Kind, Verdict
from tests.support.view_runs import LookedAt, write_run

SCHEMA = json.loads((Path(__file__).parents[3] / "docs/schemas/diagnose.json").read_text())


def report(*causes: Cause) -> Diagnosis:
    return Diagnosis(1, 9, Verdict.CAUSE, causes, ["slower"], ("trainer", "train", 0.5))


def stall() -> Cause:
    age = Evidence("age of train", None, "trainer/1", None, 95.0, "s")
    return Cause(Kind.STALL, "stands", "trainer", "trainer/1", "train", 5, evidence=[age])


def checked(found: object) -> Any:
    plain = json.loads(json.dumps(found, allow_nan=False))
    jsonschema.validate(plain, SCHEMA, cls=jsonschema.Draft202012Validator)
    return plain


@pytest.mark.parametrize(
    "run", [LookedAt(slow=2), LookedAt(slow_step=7), LookedAt(steps=2), LookedAt(workers=1)]
)
def test_real_outputs_are_as_the_schema_says(
    run: LookedAt, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path, run)
    assert main(["diagnose", "--json", "--data", str(tmp_path)]) == 0
    found = checked(json.loads(capsys.readouterr().out))
    assert (found["experiment"], found["trial"]) == ("grpo", "1")


def test_the_command_prints_the_published_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--json-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA


def test_the_schema_refuses_another_kind_and_a_missing_field() -> None:
    run = {"experiment": "e", "trial": "t", "attempt": 1, "goodput": {}}
    found = {**run, **as_json(report(stall()))}
    checked(found)
    found["causes"][0]["kind"] = "gremlin"  # type: ignore[index]  # plain values
    with pytest.raises(jsonschema.ValidationError, match="gremlin"):
        checked(found)
    del found["causes"]
    with pytest.raises(jsonschema.ValidationError, match="causes"):
        checked(found)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("worker", [None, "trainer/1"])
@pytest.mark.parametrize("since", [None, 5])
def test_each_kind_tells_the_comparison_and_the_next_look(
    kind: Kind, worker: str | None, since: int | None
) -> None:
    cause = Cause(kind, "words", "trainer", worker, "train", since)
    (found,) = as_json(report(cause))["causes"]
    assert found["compared_with"]
    assert found["next"]
    assert "{" not in found["next"]
    assert found["amount"] is None
    assert any(found["next"] in line for line in in_words(report(cause)))


def test_the_amount_is_of_the_first_evidence_with_levels() -> None:
    evidence = [
        Evidence("in words"),
        Evidence("odd", None, None, 1.0, math.nan),
        Evidence("time", None, None, 2.0, 5.0, "s"),
    ]
    (found,) = as_json(report(Cause(Kind.STRAGGLER, "w", evidence=evidence)))["causes"]
    assert found["amount"] == {"before": 2.0, "after": 5.0, "ratio": 2.5, "unit": "s"}


def test_the_place_of_a_standing_worker_is_in_its_words_and_fields() -> None:
    place = Place("node-7", 4242, ["loop.py:12 in step", "main.py:3 in main"], "waits for rank 3")
    placed = with_places(report(stall()), {"trainer/1": place})
    (found,) = as_json(placed)["causes"]
    assert (found["host"], found["pid"]) == ("node-7", 4242)
    assert found["stack"] == ["loop.py:12 in step", "main.py:3 in main"]
    assert found["words"] == "stands, at loop.py:12 in step; waits for rank 3"
    lines = [*in_words(placed)]
    assert "     on node-7, process 4242" in lines
    assert "     where: loop.py:12 in step" in lines


def test_a_slow_worker_has_a_host_and_no_stack() -> None:
    cause = Cause(Kind.STRAGGLER, "slow", "trainer", "trainer/1")
    (found,) = as_json(
        with_places(report(cause), {"trainer/1": Place("node-7", 1, ["a.py:1 in f"])})
    )["causes"]
    assert (found["host"], found["stack"], found["words"]) == ("node-7", [], "slow")
