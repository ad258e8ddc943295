"""CUDA_VISIBLE_DEVICES, in all of its forms."""

from collections.abc import Sequence

import pytest

from otel_rl.worker.system.nvml import Device, visible

A, B, C = "GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"
PART, OTHER_PART = "MIG-1111", "MIG-2222"
WHOLE = [Device(uuid, f"gpu{number}") for number, uuid in enumerate((A, B, C))]
PARTS = tuple(Device(uuid, "gpu1.mig", parent=B) for uuid in (PART, OTHER_PART))
DIVIDED = [Device(A, "gpu0"), Device(B, "gpu1", instances=PARTS)]


def shown_by(gpus: Sequence[Device | None], value: str | None) -> list[str]:
    return [device.uuid for device in visible(gpus, value)]


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
    assert shown_by(WHOLE, value) == shown


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
    assert shown_by(DIVIDED, value) == shown


def test_a_divided_gpu_without_instances_shows_nothing() -> None:
    assert shown_by([Device(A, "gpu0", instances=())], None) == []
    assert shown_by([Device(A, "gpu0", instances=())], "0") == []


def test_a_gpu_that_does_not_answer_keeps_its_number() -> None:
    assert shown_by([None, WHOLE[1]], "1") == [B]
    assert shown_by([None, WHOLE[1]], "0,1") == [B]
    assert shown_by([None, WHOLE[1]], None) == [B]
