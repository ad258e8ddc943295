"""``python -m exams.public.hangs DIR``: dumps of hanging jobs with injected faults.

DIR is the folder ``tests/attribution/unit`` of a clone of
https://github.com/NVIDIA/nvidia-resiliency-ext: each job has the dumps of its 16 ranks, the ranks
in which a fault was injected, and the missing ranks as that package's analysis names them.
"""

import argparse
import re
from pathlib import Path
from typing import NamedTuple

from otel_rl.worker.phases.flight_recorder import collective_in_words


class Judged(NamedTuple):
    """A job.

    Attributes:
        name: Of its folder.
        words: As a worker of otel_rl tells them.
        named: Ranks in these words.
        reference: Ranks that the package's own analysis names.
        injected: Ranks with an injected fault; not each of them need have come to hang.
    """

    name: str
    words: str
    named: frozenset[int]
    reference: frozenset[int]
    injected: frozenset[int]


def judged(directory: Path, name: str) -> Judged:
    """Compare what is told of a job with what is published."""
    job = directory / "fr_traces" / name
    words = collective_in_words({"TORCH_FR_DUMP_TEMP_FILE": str(job / "_dump_")}, 0)
    told = re.findall(r"without ranks? ([\d, ]+)", words)
    table = (directory / "reference_outputs" / f"{name}_reference.txt").read_text(encoding="utf-8")
    missing = [line.rpartition("|")[2] for line in table.splitlines()[1:]]
    log = (job / "fault_injection.log").read_text(encoding="utf-8")
    return Judged(
        name, words, _numbers(*told), _numbers(*missing), _numbers(log.partition("\n")[0])
    )


def _numbers(*texts: str) -> frozenset[int]:
    return frozenset(int(one) for text in texts for one in re.findall(r"\d+", text))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m exams.public.hangs", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("directory", type=Path, metavar="DIR")
    directory = parser.parse_args().directory
    found = [judged(directory, job.name) for job in sorted((directory / "fr_traces").iterdir())]
    for one in found:
        print(f"{one.name}: {one.words}")
        print(
            f"   named {sorted(one.named)}, reference {sorted(one.reference)}, "
            f"injected {sorted(one.injected)}"
        )
    alike = sum(one.named == one.reference for one in found)
    wrong = sum(not one.named <= one.injected for one in found)
    print(f"{alike} of {len(found)} as the reference; a rank without a fault named in {wrong}")


if __name__ == "__main__":
    main()
