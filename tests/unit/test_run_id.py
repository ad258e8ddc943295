import re

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.run_id import run_id


def test_the_id_of_a_run_never_changes() -> None:
    assert run_id("grpo-7b", "default") == "kronapts2dyjg6sm"


@given(st.text(), st.text())
def test_an_id_is_safe_in_paths_and_urls(experiment: str, trial: str) -> None:
    assert re.fullmatch("[a-z2-7]{16}", run_id(experiment, trial))


@given(st.text(min_size=1), st.text())
def test_moving_a_letter_between_the_names_changes_the_id(experiment: str, trial: str) -> None:
    assert run_id(experiment, trial) != run_id(experiment[:-1], experiment[-1] + trial)
