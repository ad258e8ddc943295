"""Values of many workers through a queue to one controller, which writes a row for each step.

    python -m bench.contenders.controller FILE WORKERS SECONDS SERIES PACE_S

Each worker puts its values of a second at once. It prints the CPU seconds of the controller, the
first two seconds left out.
"""

import json
import multiprocessing
import sys
import threading
import time
from pathlib import Path

CONTEXT = multiprocessing.get_context("spawn")

WARM = 2

Put = tuple[int, int, dict[str, float]]
"""(worker, step, values)."""


def put(
    queue: "multiprocessing.Queue[Put]", workers: int, seconds: int, series: int, pace_s: float
) -> None:
    """Put the values of all workers, which begin spread over the pace, as those of a job do."""

    def put_all(worker: int) -> None:
        begun_s = time.monotonic() + pace_s * worker / workers
        for step in range(WARM + seconds):
            time.sleep(max(0.0, begun_s + step * pace_s - time.monotonic()))
            queue.put((worker, step, {f"metric_{n}": step * 0.5 + n for n in range(series)}))

    threads = [threading.Thread(target=put_all, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(file: str, *numbers: str) -> None:
    workers, seconds, series = map(int, numbers[:3])
    queue: multiprocessing.Queue[Put] = CONTEXT.Queue()
    arguments = queue, workers, seconds, series, float(numbers[3])
    sender = CONTEXT.Process(target=put, args=arguments)
    sender.start()
    steps: dict[int, list[dict[str, float]]] = {}
    begun_s = 0.0
    with Path(file).open("w") as rows:
        for number in range(workers * (WARM + seconds)):
            if number == workers * WARM:
                begun_s = time.process_time()
            _, step, values = queue.get()
            steps.setdefault(step, []).append(values)
            if len(steps[step]) == workers:
                found = steps.pop(step)
                means = {key: sum(one[key] for one in found) / workers for key in found[0]}
                rows.write(json.dumps({"step": step, "values": means}) + "\n")
                rows.flush()
    used_s = time.process_time() - begun_s
    sender.join()
    print(used_s)


if __name__ == "__main__":
    main(*sys.argv[1:])
