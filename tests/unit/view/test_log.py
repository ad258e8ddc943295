"""What happened in a run, as the strip over its charts tells."""

import math
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from otel_rl.records import Description
from otel_rl.view.parts.log import events
from otel_rl.view.run_data import RunData, Series

FOUND: Any = SimpleNamespace(run=SimpleNamespace(description=Description()))
FROM_10 = [math.nan, *(float(step >= 10) for step in range(2, 16))]
FROM_12 = [float(step >= 12) for step in range(1, 16)]
OFTEN = [float(step) for step in range(1, 16)]
OF_TWO = [0.5 * (a + b) for a, b in zip(FROM_12, FROM_10[1:] + FROM_10[-1:], strict=True)]


def versions(**roles: Sequence[float]) -> list[tuple[float, str]]:
    data = RunData()
    for role, values in roles.items():
        steps = array("d", range(1, len(values) + 1))
        data.series[f"{role}/policy/version"] = Series(steps, steps, array("d", values))
    return [(one["step"], one["words"]) for one in events(FOUND, data)["listed"]]


@pytest.mark.parametrize(
    ("roles", "at"),
    [
        ({"actor": OFTEN, "generator": FROM_10, "trainer": FROM_12}, 10),
        ({"actor": OFTEN, "trainer": FROM_12}, 12),
        ({"actor": FROM_10}, 10),
        ({"generator": OF_TWO}, 12),  # once both have them
    ],
)
def test_new_weights_are_those_of_generators_or_else_of_trainers(
    roles: dict[str, Sequence[float]], at: float
) -> None:
    assert versions(**roles) == [(at, "version 1 of the weights")]
