"""CUDA_VISIBLE_DEVICES, in all of its forms."""

import pytest

from otel_rl.worker.system.nvml import Listed, visible

A, B, C = "GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"
PART, OTHER_PART = "MIG-1111", "MIG-2222"
WHOLE = [Listed(A), Listed(B), Listed(C)]
DIVIDED = [Listed(A), Listed(B, (PART, OTHER_PART))]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, [A, B, C]),
        ("", []),
        ("NoDevFiles", []),
        ("-1", []),
        ("0", [A]),
        ("2,0", [C, A]),
        (" 1 , 2 ", [B, C]),
        ("1,1", [B]),
        ("0,-1,2", [A]),
        ("0,7,2", [A]),
        ("0,x,2", [A]),
        ("0,,2", [A]),
        (C, [C]),
        (f"{C},{A}", [C, A]),
        ("GPU-cc,GPU-aaaa", [C, A]),
        ("GPU-aa", []),
        ("GPU-unknown,0", []),
        (f"0,{C}", [A, C]),
        ("MIG-1111", []),
    ],
)
def test_whole_gpus_are_shown_as_cuda_shows_them(value: str | None, shown: list[str]) -> None:
    assert visible(WHOLE, value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, [A, PART, OTHER_PART]),
        (PART, [PART]),
        (f"{OTHER_PART},{PART}", [OTHER_PART, PART]),
        ("MIG-2", [OTHER_PART]),
        ("1", [PART]),
        ("0,1", [A, PART]),
        (B, [B]),
    ],
)
def test_instances_of_a_divided_gpu_are_devices_of_their_own(
    value: str | None, shown: list[str]
) -> None:
    assert visible(DIVIDED, value) == shown


def test_a_divided_gpu_without_instances_shows_nothing() -> None:
    assert visible([Listed(A, ())], None) == []
    assert visible([Listed(A, ())], "0") == []


def test_a_gpu_that_does_not_answer_keeps_its_number() -> None:
    assert visible([Listed(""), Listed(B)], "1") == [B]
