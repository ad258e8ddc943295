import logging
import subprocess
import sys

import pytest

from otel_rl.worker.drops import DropReason, Drops
from otel_rl.worker.guard import Guard

OWN_HANDLER = """
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
logging.getLogger("otel_rl").addHandler(handler)
"""


def test_an_error_is_swallowed_and_counted() -> None:
    drops = Drops()
    with Guard(drops):
        raise RuntimeError("inside")
    assert drops.counts() == {DropReason.INTERNAL: 1}


def test_ctrl_c_passes() -> None:
    with pytest.raises(KeyboardInterrupt), Guard(Drops()):
        raise KeyboardInterrupt


def test_a_fault_that_repeats_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    guard = Guard(Drops(), clock_s=lambda: now_s)
    with caplog.at_level(logging.WARNING, "otel_rl"):
        for _ in range(100):
            guard.drop(DropReason.BAD_STEP, "The step is bad.")
        now_s = 61.0
        guard.drop(DropReason.BAD_STEP, "The step is bad.")
    assert [record.message for record in caplog.records] == ["The step is bad."] * 2
    assert guard.drops.counts() == {DropReason.BAD_STEP: 101}


def _logged(configuration: str) -> str:
    """Return standard error of a program that has configured logging so, and logs one line."""
    program = (
        f"import logging; {configuration}\n"
        "from otel_rl.worker.drops import DropReason, Drops\n"
        "from otel_rl.worker.guard import Guard\n"
        "Guard(Drops()).drop(DropReason.BAD_STEP, 'The step is bad.')"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return run.stderr


@pytest.mark.process
def test_a_line_has_the_name_of_its_library_where_nobody_has_configured_logging() -> None:
    assert _logged("") == "otel_rl: The step is bad.\n"


@pytest.mark.parametrize(
    "configuration",
    [
        "logging.basicConfig()",
        OWN_HANDLER,
    ],
)
@pytest.mark.process
def test_a_program_that_has_configured_logging_has_each_line_once(configuration: str) -> None:
    assert _logged(configuration) == "WARNING:otel_rl:The step is bad.\n"
