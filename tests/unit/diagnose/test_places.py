"""Stacks of standing workers: a save or a compilation within other work is no hang."""

import pytest

from otel_rl.diagnose.places import Place, with_places
from otel_rl.diagnose.result import Cause, Diagnosis, Evidence, Kind, Verdict

OUTER = ["loop.py:12 in step", "main.py:3 in main"]
SAVES = "torch/serialization.py:943 in save"
COMPILES = "torch/_dynamo/convert_frame.py:1105 in ConvertFrame.__call__"


def standing(frame: str, *, age_s: float = 40.0, step: int | None = 30, more: int = 0) -> Diagnosis:
    """A trainer that is in a step for so long, and calls this, the innermost of three."""
    age = Evidence("age of train", "worker/phase/age/train", "trainer/0", None, age_s, "s")
    stall = Cause(Kind.STALL, "stands", "trainer", "trainer/0", "train", 30, evidence=[age])
    others = [Cause(Kind.NAN, "NaN", "trainer", "trainer/0")] * more
    report = Diagnosis(0, 30, Verdict.CAUSE, [stall, *others], [], None)
    return with_places(report, {"trainer/0": Place("node-7", 42, [frame, *OUTER], step=step)})


@pytest.mark.parametrize(
    ("frame", "does"),
    [
        (SAVES, "saves"),
        ("torch/distributed/checkpoint/filesystem.py:300 in _write_item", "saves"),
        ("safetensors/torch.py:286 in save_file", "saves"),
        ("transformers/modeling_utils.py:4100 in PreTrainedModel.save_pretrained", "saves"),
        ("my_job/train.py:80 in Trainer.save_checkpoint", "saves"),
        (COMPILES, "compiles"),
        ("torch/_inductor/graph.py:2000 in GraphLowering.compile_to_module", "compiles"),
        ("triton/compiler/compiler.py:276 in compile", "compiles"),
        ("torch/utils/cpp_extension.py:1500 in load", "compiles"),
    ],
)
def test_a_worker_that_saves_or_compiles_within_its_work_does_not_hang(
    frame: str, does: str
) -> None:
    found = standing(frame)
    assert (found.verdict, [*found.causes]) == (Verdict.HEALTHY, [])
    assert [*found.changes] == [f"trainer/0 {does} in train for 40 s, at {frame}"]


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param("torch/utils/checkpoint.py:496 in checkpoint", id="keeps no file"),
        pytest.param("torch/_dynamo/eval_frame.py:655 in compile_wrapper", id="runs what is made"),
        pytest.param("torch/autograd/function.py:90 in save_for_backward", id="saves no model"),
        pytest.param("torch/distributed/distributed_c10d.py:2800 in all_reduce", id="waits"),
    ],
)
def test_a_worker_that_does_neither_hangs(frame: str) -> None:
    found = standing(frame)
    assert [one.kind for one in found.causes] == [Kind.STALL]
    assert found.causes[0].stack[0] == frame


@pytest.mark.parametrize(
    ("age_s", "step"),
    [
        pytest.param(301.0, 30, id="longer than a first save may take"),
        pytest.param(40.0, 20, id="the stack is of an earlier step"),
    ],
)
def test_a_save_that_takes_too_long_or_is_over_is_no_reason(age_s: float, step: int) -> None:
    assert [one.kind for one in standing(SAVES, age_s=age_s, step=step).causes] == [Kind.STALL]


def test_other_causes_stay_beside_a_save() -> None:
    found = standing(SAVES, more=1)
    assert (found.verdict, [one.kind for one in found.causes]) == (Verdict.CAUSE, [Kind.NAN])


@pytest.mark.parametrize("frame", [SAVES, "model.py:80 in forward"])
def test_the_stack_of_a_worker_that_went_on_tells_nothing_of_when_it_was_frozen(frame: str) -> None:
    silent = Evidence("time without a report", None, "trainer/0", None, 40.0, "s")
    frozen = Cause(
        Kind.STALL, "frozen", "trainer", "trainer/0", since=30, until=31, evidence=[silent]
    )
    report = Diagnosis(0, 90, Verdict.CAUSE, [frozen], [], None)
    place = Place("node-7", 42, [frame, *OUTER], step=90)
    (found,) = with_places(report, {"trainer/0": place}).causes
    assert (found.words, found.host, [*found.stack]) == ("frozen", "node-7", [])


@pytest.mark.parametrize(("own", "step", "is_there"), [(28, 28, True), (29, 28, False)])
def test_the_stack_of_a_worker_is_of_its_own_step_though_others_are_further(
    own: int, step: int, *, is_there: bool
) -> None:
    evidence = [
        Evidence("age of train", "worker/phase/age/train", "trainer/0", None, 40.0, "s"),
        Evidence("step", "worker/step/number", "trainer/0", None, own),
    ]
    stall = Cause(Kind.STALL, "stands", "trainer", "trainer/0", "train", 30, evidence=evidence)
    report = Diagnosis(0, 30, Verdict.CAUSE, [stall], [], None)
    place = Place("node-7", 42, ["model.py:80 in forward", *OUTER], step=step)
    (found,) = with_places(report, {"trainer/0": place}).causes
    assert ("model.py:80 in forward" in found.words) == is_there
