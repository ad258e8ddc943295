"""Public data is read in the form in which it is published; made here, nothing of it is kept."""

import json
import pickle
import random
from pathlib import Path

from exams.public.hangs import judged
from exams.public.learning import diagnosed


def job(directory: Path, *, last: dict[int, int], injected: str, missing: str) -> None:
    """Write dumps of ranks that have entered so many collectives, of which the last is open."""
    place = directory / "fr_traces" / "job"
    place.mkdir(parents=True)
    for rank, entered in last.items():
        entries = [
            {
                "process_group": ("7", "EXPERTS"),
                "collective_seq_id": number,
                "profiling_name": "nccl:all_to_all",
                "state": "scheduled" if number == max(last.values()) else "completed",
                "time_created_ns": number,
            }
            for number in range(1, entered + 1)
        ]
        config = {"7": {"ranks": str([*last])}}
        dump = pickle.dumps({"pg_config": config, "entries": entries})
        (place / f"_dump_{rank}").write_bytes(dump)
    (place / "fault_injection.log").write_text(f"Fault ranks: {injected}\nFault delay: 180.0\n")
    table = directory / "reference_outputs" / "job_reference.txt"
    table.parent.mkdir()
    table.write_text(f"PGID | Op Type | Missing Ranks\n7 | nccl:all_to_all | {missing}\n")


def test_the_ranks_that_hang_are_those_of_the_published_analysis(tmp_path: Path) -> None:
    job(tmp_path, last={0: 5, 1: 4, 2: 5, 3: 4}, injected="[1, 3]", missing="1,3")
    found = judged(tmp_path, "job")
    assert found.named == found.reference == found.injected == {1, 3}


def test_a_job_that_is_named_otherwise_is_seen(tmp_path: Path) -> None:
    job(tmp_path, last={0: 5, 1: 4}, injected="[0]", missing="0")
    assert judged(tmp_path, "job").named == {1}


def curves(path: Path, *, stuck_at: int | None = None) -> None:
    """Write a run that learns slowly; from a step on its reward is constant."""
    chance = random.Random(43)
    with path.open("w") as lines:
        for step in range(1, 101):
            reward = 0.2 + step / 300 + chance.gauss(0, 0.05)
            frame = {
                "step": step,
                "train_reward": 5.0 if stuck_at and step >= stuck_at else reward,
                "kl_mean": step / 1e5,
                "entropy_mean": 1.0 + chance.gauss(0, 0.05),
                "gen_len_mean": 100 + chance.gauss(0, 5),
            }
            held_out = {"step": step, "oracle_reward": 0.2 + step / 300 + chance.gauss(0, 0.05)}
            for kind, payload in (("frame", frame), ("oracle", held_out), ("detector", {})):
                ts = 1_781_844_143.5 + 9.2 * step
                lines.write(json.dumps({"kind": kind, "step": step, "payload": payload, "ts": ts}))
                lines.write("\n")


def test_a_run_that_learns_has_no_alarm_and_one_that_breaks_has(tmp_path: Path) -> None:
    curves(tmp_path / "healthy.jsonl")
    assert [one.words for one in diagnosed(tmp_path / "healthy.jsonl").causes] == []
    curves(tmp_path / "broken.jsonl", stuck_at=60)
    assert [one.kind for one in diagnosed(tmp_path / "broken.jsonl").causes] == ["reward_bug"]
