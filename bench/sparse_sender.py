"""``python -m bench.sparse_sender ADDRESS DIRECTORY WORKERS SECONDS PACE_S``.

Sends the files ``<worker>-<second>`` of a directory: each worker its own in order, over a
connection of its own, one every ``PACE_S`` or, if that is 0, once the last one is answered. Workers
begin spread over the pace, as those of a job do. A request that is refused for the moment is sent
again. Writes a line for each request: its second, Unix time of sending, seconds to its answer.
"""

import http.client
import sys
import threading
import time
from pathlib import Path

_HEADERS = {"Content-Type": "application/x-protobuf"}

_FOR_THE_MOMENT = {429, 503}

_NOTHING_REFUSED = (b"", b"\x0a\x00")  # without partial_success, or with an empty one


def _send(
    address: str,
    files: list[Path],
    offset_s: float,
    pace_s: float,
    failed: list[str],
    answered: list[str],
) -> None:
    connection = http.client.HTTPConnection(address)
    begun_s = time.monotonic() + offset_s
    for number, file in enumerate(files):
        time.sleep(max(0.0, begun_s + number * pace_s - time.monotonic()))
        body = file.read_bytes()
        sent_s, asked_s = time.time(), time.monotonic()
        connection.request("POST", "/v1/metrics", body, _HEADERS)
        answer = connection.getresponse()
        said = answer.read()
        while answer.status in _FOR_THE_MOMENT:
            time.sleep(float(answer.headers.get("Retry-After", "1")))
            connection.request("POST", "/v1/metrics", body, _HEADERS)
            answer = connection.getresponse()
            said = answer.read()
        answered.append(f"{number} {sent_s:.6f} {time.monotonic() - asked_s:.6f}")
        if answer.status != 200 or said not in _NOTHING_REFUSED:
            failed.append(f"{file.name}: {answer.status} {said[:200]!r}")
            return


def main(address: str, directory: str, workers: str, seconds: str, pace: str) -> None:
    failed: list[str] = []
    answered: list[str] = []
    pace_s, n = float(pace), int(workers)
    threads = []
    for worker in range(n):
        files = [Path(directory) / f"{worker}-{second}" for second in range(int(seconds))]
        arguments = (address, files, pace_s * worker / n, pace_s, failed, answered)
        threads.append(threading.Thread(target=_send, args=arguments))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit("; ".join(failed))
    print("\n".join(answered))


if __name__ == "__main__":
    main(*sys.argv[1:])
