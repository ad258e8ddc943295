"""A program with 300 keys of its own, logged as verl does, in the W&B run that it ends in."""

import re
import shlex
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.process.commands import otel_rl, wandb_run

pytestmark = pytest.mark.process

WIDE = """
    import otel_rl

    KEYS = [
        "actor/entropy",
        "val-core/aime24/acc/mean@8",
        *(f"actor/lr-{group}.decay" for group in range(99)),
        *(f"critic/head_{head}/score" for head in range(100)),
        *(f"timing_s/part_{part}" for part in range(99)),
    ]

    otel_rl.init()
    for step in range(1, 4):
        otel_rl.log({key: place + step / 10 for place, key in enumerate(KEYS)}, step=step)
"""


@pytest.mark.slow
def test_300_keys_are_in_the_program_s_own_sections_over_one_axis(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(WIDE))
    usual = ["--names", "framework", "--detail", "basic"]
    command = [sys.executable, "train.py"]
    done = otel_rl("run", "--experiment", "wide", *usual, "--", *command, cwd=tmp_path)
    assert done.status == 0, done.err
    run = wandb_run(tmp_path, "wide")
    own = {
        key: axis
        for key, axis in run.metrics.items()
        if key.startswith(("actor/", "critic/", "timing_s/", "val-core/"))
    }
    sections = Counter(key.partition("/")[0] for key in own)
    assert sections == {"actor": 100, "critic": 100, "timing_s": 99, "val-core": 1}
    assert set(own.values()) == {"step"}
    assert not any(key.startswith("trainer/") for key in run.metrics)
    values = [row["actor/entropy"] for row in run.history if "actor/entropy" in row]
    assert values == [0.1, 0.2, 0.3]
    (report,) = re.findall("report to mail: otel-rl (view .*)", run.notes)
    made = otel_rl(*shlex.split(report), cwd=tmp_path)
    assert made.status == 0, made.err
    hours = {key for key, axis in run.metrics.items() if axis == "hours"}
    assert all(key.startswith("service/") for key in hours), hours
