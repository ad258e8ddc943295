"""The tutorials and how-to pages that need a real framework, followed from top to bottom."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.frameworks.conftest import Runner, demand
from tests.lab.frameworks.environment import FRAMEWORKS, RLLIB, VLLM
from tests.process.commands import Row, as_a_user, jsonl_rows
from tests.support.docs_examples import IN_THE_LAB, files, follow, followed_pages, is_shown
from tests.support.screenshots import picture

DOCS = Path(__file__).parents[2] / "docs"


def on_the_path(runner: Runner) -> Runner:
    """The same directory, with ``python`` and ``otel-rl`` of the lab on the path."""
    programs = runner.directory / "bin"
    programs.mkdir()
    for name, words in {"python": "", "otel-rl": "-m otel_rl"}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {runner.python} {words} "$@"\n')
        (programs / name).chmod(0o755)
    return runner


@pytest.fixture
def pages(frameworks: Runner) -> Runner:
    return on_the_path(frameworks)


def followed(page: str, pages: Runner, saved: Mapping[str, str] | None = None) -> Path:
    """The directory in which every command of a page has ended well, and printed what is shown.

    ``saved`` are files that the page takes from another one.
    """
    directory = pages.directory / Path(page).stem
    directory.mkdir()
    for name, text in (saved or {}).items():
        (directory / name).write_text(text)
    lab = pages.environment()
    environment = as_a_user(directory) | {
        name: lab[name] for name in lab if not name.startswith("OTEL_") and name != "HOME"
    }
    environment["PATH"] = f"{pages.directory / 'bin'}:{environment['PATH']}"
    for said in follow(DOCS / page, directory, environment):
        assert said.status == 0, f"{said.command}\n{said.printed}"
        assert is_shown(said), f"{said.command}\n{said.printed}\nIS NOT\n{said.shown}"
        assert "Traceback" not in said.printed, f"{said.command}\n{said.printed}"
    return directory


def column(rows: Sequence[Row], key: str) -> dict[int, float]:
    return {row.step: row.values[key] for row in rows if key in row.values}


def test_trl_on_a_laptop(pages: Runner) -> None:
    directory = followed("tutorials/trl-on-a-laptop.md", pages)
    rows = jsonl_rows(directory, "trl", "laptop")
    rewards = column(rows, "reward")
    assert [*rewards] == [*range(1, 41)]
    assert rewards[40] > 2 * rewards[1]
    for key in ("entropy", "completions/mean_length", "trainer/iteration/duration"):
        assert [*column(rows, key)] == [*range(1, 41)], key
    for phase in ("generate", "reward", "train"):
        assert [*column(rows, f"phase/trainer/{phase}")] == [*range(1, 41)], phase
    picture(directory, "trl/laptop", "trl")


def test_asynchronous_rl_with_ray(pages: Runner) -> None:
    directory = followed("tutorials/asynchronous-ray.md", pages)
    rows = jsonl_rows(directory, "async", "ray")
    assert [*column(rows, "trainer/reward/mean")] == [*range(1, 41)]
    assert [*column(rows, "staleness")] == [*range(1, 41)]
    assert column(rows, "replay_buffer/size")
    assert column(rows, "generator/tokens/rate")
    picture(directory, "async/ray", "asynchronous-ray")


TUTORIAL = files(DOCS / "tutorials" / "trl-on-a-laptop.md")
HOW_TO = {
    "ray": (
        RLLIB,
        {
            ("grpo-7b", "loss"): [1, 2, 3],
            ("grpo-7b", "sampled"): [1, 2, 3],
            ("cartpole", "learners/default_policy/total_loss"): [1, 2, 3],
        },
    ),
    "stable-baselines3": (FRAMEWORKS, {("cartpole", "rollout/ep_rew_mean"): [64, 128, 192, 256]}),
    "trl": (FRAMEWORKS, {("grpo-7b", "reward"): [*range(1, 41)]}),
    "verl": (FRAMEWORKS, {("grpo-7b", "actor/pg_loss"): [1, 2, 3]}),
    "vllm": (VLLM, {}),
}
"""Where the commands of a how-to page run, and the steps of the keys of its runs."""


def test_every_page_that_needs_a_framework_is_followed() -> None:
    assert HOW_TO.keys() == IN_THE_LAB
    assert followed_pages(DOCS / "how-to") >= IN_THE_LAB


@pytest.mark.timeout(1_800)  # two minutes on a quiet machine
@pytest.mark.parametrize("name", HOW_TO)
def test_a_how_to_page(name: str, metadata_of_this_checkout: Path, tmp_path: Path) -> None:
    environment, seen = HOW_TO[name]
    demand(environment, f"what docs/how-to/{name}.md needs")
    runner = Runner(environment.python, tmp_path, metadata_of_this_checkout)
    saved = TUTORIAL if name == "trl" else {}
    directory = followed(f"how-to/{name}.md", on_the_path(runner), saved)
    for (experiment, key), steps in seen.items():
        assert [*column(jsonl_rows(directory, experiment, "1"), key)] == steps, key
    if name == "vllm":
        rows = jsonl_rows(directory, "grpo-7b", "1")
        assert max(column(rows, "generator/tokens").values()) == 10 * 16
