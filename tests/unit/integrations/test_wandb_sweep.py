"""The file in which an agent of W&B gives a run its hyper-parameters."""

from pathlib import Path

import pytest

from otel_rl.integrations.sweeps import PARAMETERS, parameters
from otel_rl.worker.drops import DropReason
from otel_rl.worker.session import GUARD


def test_each_hyper_parameter_has_its_value(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("wandb_version: 1\nlr:\n  value: 0.5\nlayers:\n  value: [1, 2]\n")
    assert parameters({PARAMETERS: str(file)}) == {"lr": 0.5, "layers": [1, 2]}
    assert parameters({}) == {}


@pytest.mark.parametrize("text", [None, "lr: [", "- lr", "lr: 0.5"])
def test_a_file_that_is_something_else_is_counted_and_told(
    text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_text(text)
    before = GUARD.drops.counts().get(DropReason.BAD_ATTRIBUTES, 0)
    assert parameters({PARAMETERS: str(file)}) == {}
    assert GUARD.drops.counts()[DropReason.BAD_ATTRIBUTES] == before + 1
    assert all(str(file) in record.getMessage() for record in caplog.records)
