"""An application on Ray Serve that answers requests; Ray serves its metrics for a scrape.

It needs ``ray[serve]``. Two replicas of one deployment, one HTTP route, some of its requests fail.
"""

import contextlib
import os
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

REPLICAS, REQUESTS, FAILING = 2, 40, 5
HTTP_PORT = 18200
SCRAPED_S = 8.0


def main(port: int) -> None:
    """Serve some requests, then answer a scrape or two."""
    ready = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what Ray and its processes write
    import ray  # type: ignore[import-not-found]  # no dependency
    from ray import serve

    @serve.deployment(num_replicas=REPLICAS, max_ongoing_requests=2)
    class Generator:
        def __call__(self, request: object) -> str:
            time.sleep(0.05)
            if request.query_params.get("fails"):  # type: ignore[attr-defined]  # Starlette's
                raise ValueError("on purpose")
            return "text"

    for _ in range(10):  # it gives up after half a minute, on a machine that has other work
        try:
            ray.init(
                num_cpus=4,
                include_dashboard=False,
                _metrics_export_port=port,
                _system_config={"metrics_report_interval_ms": 500},
            )
            break
        except Exception:  # noqa: BLE001  # of whatever kind
            ray.shutdown()
    serve.start(http_options={"port": HTTP_PORT})
    application = Generator.bind()  # type: ignore[attr-defined]  # a deployment
    serve.run(application, name="app", route_prefix="/generate")
    ask(failing=REQUESTS // 2)  # a scrape counts from the first that it sees
    time.sleep(SCRAPED_S)
    os.write(ready, b"served\n")
    os.close(ready)
    time.sleep(SCRAPED_S)
    ask(failing=FAILING)
    sys.stdin.readline()
    serve.shutdown()
    ray.shutdown()


def ask(failing: int) -> None:
    """Ask some times, eight at once; the first ones fail."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(request, [number < failing for number in range(REQUESTS)]))


def request(fails: bool) -> None:
    """Ask once."""
    url = f"http://127.0.0.1:{HTTP_PORT}/generate{'?fails=1' if fails else ''}"
    with contextlib.suppress(urllib.error.HTTPError):  # it is counted
        urllib.request.urlopen(url, timeout=60)


if __name__ == "__main__":
    main(int(sys.argv[1]))
