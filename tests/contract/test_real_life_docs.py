"""Each situation that a process may be in is held by tests that exist."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HELD_BY = {
    "fork": [
        "test_a_forked_child",
        "test_a_fork_while_threads",
        "test_a_fork_within_a_phase",
        "test_a_grandchild",
        "test_a_data_loader",
    ],
    "multiprocessing, spawn": [
        "test_a_multiprocessing_child",
        "test_a_child_that_ends_by_itself",
        "test_a_spawned_child",
    ],
    "threads": [
        "test_threads_that_record",
        "test_threads_with_steps",
    ],
    "asyncio": [
        "test_tasks_that_take_turns",
        "test_concurrent_tasks",
        "test_a_hang_in_a_task",
    ],
    "signals": [
        "test_init_leaves_the_meaning",
        "test_a_signal_in_the_middle",
        "test_a_signal_handler_may",
    ],
    "`os._exit`, exec, a kill": [
        "test_a_kill_misses",
        "test_a_child_that_is_killed",
        "test_children_killed_in_the_middle",
    ],
    "the interpreter's exit": [
        "test_a_clean_end_misses",
        "test_an_interpreter_that_falls_apart",
        "test_user_finalizers",
    ],
    "a clock that jumps": [
        "test_a_clock_that_is_set_back",
        "test_a_clock_that_jumps_back",
        "test_the_points_of_a_series_tile_time",
    ],
    "1,000 metrics in one call": [
        "test_a_thousand_metrics",
    ],
    "scalars of numpy and torch": [
        "test_scalars_of_numpy",
        "test_a_tensor_is_copied",
        "test_a_large_tensor",
    ],
    "names in any script": [
        "test_names_of_every_script",
    ],
    "no bridge, or one that dies": [
        "test_a_bridge_that_is_killed_at_the_start",
        "test_a_bridge_that_never_was",
    ],
}
"""Situation -> beginnings of names of tests."""


@pytest.mark.parametrize("situation", HELD_BY)
def test_every_situation_is_held_by_tests_that_exist(situation: str) -> None:
    files = [
        *(ROOT / "tests/process").glob("test_*.py"),
        *(ROOT / "tests/unit/worker").rglob("*.py"),
    ]
    defined = "\n".join(file.read_text(encoding="utf-8") for file in files)
    missing = [name for name in HELD_BY[situation] if f"\ndef {name}" not in defined]
    assert missing == []
