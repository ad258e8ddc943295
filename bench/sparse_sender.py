"""``python -m bench.sparse_sender ADDRESS DIRECTORY WORKERS SECONDS PACE_S``.

Sends the files ``<worker>-<second>`` of a directory: each worker its own in order, over a
connection of its own, one every ``PACE_S`` or, if that is 0, once the last one is answered. Workers
begin spread over the pace, as those of a job do. Writes the ms to each answer, one a line.
"""

import http.client
import sys
import threading
import time
from pathlib import Path

_HEADERS = {"Content-Type": "application/x-protobuf"}

_NOTHING_REFUSED = (b"", b"\x0a\x00")  # without partial_success, or with an empty one


def _send(
    address: str,
    files: list[Path],
    offset_s: float,
    pace_s: float,
    failed: list[str],
    took_ms: list[float],
) -> None:
    connection = http.client.HTTPConnection(address)
    begun_s = time.monotonic() + offset_s
    for number, file in enumerate(files):
        time.sleep(max(0.0, begun_s + number * pace_s - time.monotonic()))
        body = file.read_bytes()
        asked_s = time.monotonic()
        connection.request("POST", "/v1/metrics", body, _HEADERS)
        answer = connection.getresponse()
        said = answer.read()
        took_ms.append(1e3 * (time.monotonic() - asked_s))
        if answer.status != 200 or said not in _NOTHING_REFUSED:
            failed.append(f"{file.name}: {answer.status} {said[:200]!r}")
            return


def main(address: str, directory: str, workers: str, seconds: str, pace: str) -> None:
    failed: list[str] = []
    took_ms: list[float] = []
    pace_s, n = float(pace), int(workers)
    threads = []
    for worker in range(n):
        files = [Path(directory) / f"{worker}-{second}" for second in range(int(seconds))]
        arguments = (address, files, pace_s * worker / n, pace_s, failed, took_ms)
        threads.append(threading.Thread(target=_send, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit("; ".join(failed))
    print("\n".join(map(str, took_ms)))


if __name__ == "__main__":
    main(*sys.argv[1:])
