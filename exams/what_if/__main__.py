"""``python -m exams.what_if``: told costs of causes, held to runs of a simulator without the fault.

    python -m exams.what_if [--seed N] [--cases 60]

Each case of the exam with one slowdown is played twice, with and without it. Of both, the time of a
step since its onset is compared with what the diagnosis says.
"""

import argparse
from statistics import median

from exams.what_if.simulated import costs


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m exams.what_if", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=20, metavar="N")
    parser.add_argument("--cases", type=int, default=60, metavar="N")
    options = parser.parse_args()
    errors: list[float] = []
    for told in costs(options.seed, options.cases):
        if told.error is not None:
            errors.append(told.error)
        print(told, flush=True)
    wrong = sorted(map(abs, errors))
    print(
        f"{len(errors)} of {options.cases} told; error of the added time of a step, in parts of the"
        f" step: median {median(wrong):.1%}, 90 % within {wrong[int(0.9 * (len(wrong) - 1))]:.1%},"
        f" largest {wrong[-1]:.1%}, mean with its sign {sum(errors) / len(errors):+.1%}"
    )


if __name__ == "__main__":
    main()
