"""Dumps of PyTorch's flight recorder: who is missing, and what is not read."""

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from otel_rl.worker.phases.flight_recorder import collective_in_words

DONE, OPEN = "completed", "scheduled"


def dump(states: Sequence[str], *, ranks: str = "[0, 1, 2]", **others: Any) -> dict[str, Any]:
    """The parts that are read of what ``_dump_fr_trace`` of PyTorch 2.15 returns."""
    return {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": ranks}},
        "entries": [
            {
                "process_group": ("0", "default_pg"),
                "collective_seq_id": number,
                "profiling_name": "gloo:all_reduce",
                "state": state,
                "retired": state == DONE,
                "is_p2p": False,
                **others,
            }
            for number, state in enumerate(states, 1)
        ],
    }


def words(directory: Path, dumps: Mapping[int, object], since_ns: int = 0) -> str:
    for rank, content in dumps.items():
        path = directory / f"trace_{rank}"
        path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    prefix = str(directory / "trace_")
    return collective_in_words({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": prefix}, since_ns)


def test_the_rank_that_has_not_come_is_named(tmp_path: Path) -> None:
    dumps = {0: dump([DONE, OPEN]), 1: dump([DONE]), 2: dump([DONE, OPEN])}
    found = words(tmp_path, dumps)
    assert found == "gloo:all_reduce (number 2 of group 0) is without rank 1"


def test_of_ranks_that_wait_for_each_other_the_one_that_waits_for_none_is_named(
    tmp_path: Path,
) -> None:
    """Rank 1 is in no collective; rank 0 waits for it in one group, and rank 2 for both."""
    pairs, everyone = ("7", "pairs"), ("9", "everyone")
    config = {
        "7": {"name": "7", "desc": "pairs", "ranks": "[0, 1]"},
        "9": {"name": "9", "desc": "everyone", "ranks": "[0, 1, 2]"},
    }

    def of(*entries: tuple[tuple[str, str], int, str]) -> dict[str, Any]:
        return {
            "pg_config": config,
            "entries": [
                {
                    "process_group": group,
                    "collective_seq_id": number,
                    "profiling_name": f"nccl:{group[1]}",
                    "state": state,
                    "time_created_ns": number,
                }
                for group, number, state in entries
            ],
        }

    dumps = {
        0: of((everyone, 1, DONE), (pairs, 900, DONE), (pairs, 901, OPEN)),
        1: of((everyone, 1, DONE), (pairs, 900, DONE)),
        2: of((everyone, 1, DONE), (everyone, 2, OPEN)),
    }
    assert words(tmp_path, dumps) == "nccl:everyone (number 2 of group 9) is without rank 1"


def test_ranks_that_are_missing_in_groups_of_their_own_are_all_named(tmp_path: Path) -> None:
    def of(group: str, ranks: str, *states: str) -> dict[str, Any]:
        return {
            "pg_config": {group: {"ranks": ranks}},
            "entries": [
                {
                    "process_group": (group, group),
                    "collective_seq_id": number,
                    "profiling_name": "nccl:all_reduce",
                    "state": state,
                }
                for number, state in enumerate(states, 1)
            ],
        }

    dumps = {
        0: of("a", "[0, 1]", DONE, OPEN),
        1: of("a", "[0, 1]", DONE),
        2: of("b", "[2, 3]", DONE, DONE, OPEN),
        3: of("b", "[2, 3]", DONE, DONE),
    }
    assert words(tmp_path, dumps) == (
        "nccl:all_reduce (number 2 of group a) is without rank 1; "
        "nccl:all_reduce (number 3 of group b) is without rank 3"
    )


def test_a_rank_without_a_dump_is_not_called_missing(tmp_path: Path) -> None:
    found = words(tmp_path, {0: dump([OPEN]), 2: dump([OPEN])})
    assert found == "gloo:all_reduce (number 1 of group 0) is open; rank 1 left no dump"


def test_of_a_slow_network_no_rank_is_missing(tmp_path: Path) -> None:
    found = words(tmp_path, {rank: dump([OPEN]) for rank in range(3)})
    assert found.endswith("has all ranks and does not end")


@pytest.mark.parametrize("content", [dump([DONE]), dump([OPEN], is_p2p=True), dump([]), {}, [], 7])
def test_without_an_open_collective_nothing_is_told(tmp_path: Path, content: object) -> None:
    assert words(tmp_path, {0: content}) == ""


def test_only_new_files_and_only_with_the_variable_are_read(tmp_path: Path) -> None:
    assert words(tmp_path, {0: dump([OPEN])}, since_ns=1 << 62) == ""
    assert collective_in_words({}, 0) == ""
    assert collective_in_words({"TORCH_FR_DUMP_TEMP_FILE": str(tmp_path / "no/such_")}, 0) == ""


class _Attack:
    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self._mark),)


def test_a_pickle_that_calls_something_is_refused_and_calls_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "called"
    attack = pickle.dumps({**dump([OPEN]), "more": _Attack(mark)})
    assert words(tmp_path, {0: attack}) == ""
    assert not mark.exists()
    pickle.loads(attack)
    assert mark.exists()  # it does call, where calls are not refused


@pytest.mark.parametrize("end", range(0, 200, 7))
def test_a_dump_that_is_being_written_is_left_out(tmp_path: Path, end: int) -> None:
    whole = pickle.dumps(dump([DONE, OPEN]))
    assert words(tmp_path, {0: whole[:end], 1: dump([OPEN])}).startswith("gloo:all_reduce (number")


def test_too_many_missing_ranks_are_counted(tmp_path: Path) -> None:
    ranks = str([*range(20)])
    dumps = {rank: dump([OPEN] if rank == 0 else [], ranks=ranks) for rank in range(20)}
    found = words(tmp_path, dumps)
    assert found.endswith("is without ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more")
