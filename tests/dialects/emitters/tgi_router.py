"""Serves metrics with the names, kinds and labels of Text Generation Inference 3.3.7.

Its router is no Python package: ``tests/dialects/test_tgi.py`` holds ``METRICS`` to its source.
Two requests a scrape are added from the second on, for three scrapes.
"""

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Thread

ADDED, SCRAPES = 2, 3

METRICS = {
    "tgi_batch_current_max_tokens": ("gauge", 256),
    "tgi_batch_current_size": ("gauge", 4),
    "tgi_batch_inference_count": ("counter", {'method="prefill"': 1, 'method="decode"': 8}),
    "tgi_batch_inference_duration": ("histogram", {'method="prefill"': 0.02, 'method="decode"': 1}),
    "tgi_queue_size": ("gauge", 3),
    "tgi_request_count": ("counter", {"": 1}),
    "tgi_request_duration": ("histogram", {"": 2.0}),
    "tgi_request_failure": ("counter", {'err="overloaded"': 1}),
    "tgi_request_generated_tokens": ("histogram", {"": 64}),
    "tgi_request_inference_duration": ("histogram", {"": 1.5}),
    "tgi_request_input_length": ("histogram", {"": 7}),
    "tgi_request_max_new_tokens": ("histogram", {"": 96}),
    "tgi_request_mean_time_per_token_duration": ("histogram", {"": 0.03}),
    "tgi_request_queue_duration": ("histogram", {"": 0.25}),
    "tgi_request_success": ("counter", {"": 1}),
    "tgi_request_validation_duration": ("histogram", {"": 0.01}),
}
"""Kind of each metric, and of a gauge its value, else for each set of labels that of a request."""

BOUNDS = (0.015, 0.1, 1, 4, 16, 64, 128)

SCRAPED = count()


def exposition(requests: int) -> Iterator[str]:
    """Yield the lines after some requests."""
    for name, (kind, each) in METRICS.items():
        yield f"# TYPE {name} {kind}"
        if not isinstance(each, dict):
            yield f"{name} {each}"
            continue
        for labels, value in each.items():
            if kind == "counter":
                yield f"{name}{{{labels}}} {value * requests}"
                continue
            begin = f"{labels}," if labels else ""
            for bound in BOUNDS:
                yield f'{name}_bucket{{{begin}le="{bound}"}} {requests * (value <= bound)}'
            yield f'{name}_bucket{{{begin}le="+Inf"}} {requests}'
            yield f"{name}_sum{{{labels}}} {value * requests}"
            yield f"{name}_count{{{labels}}} {requests}"


class Router(BaseHTTPRequestHandler):
    """Answers a scrape."""

    def do_GET(self) -> None:
        """Answer."""
        lines = exposition(ADDED * min(next(SCRAPED), SCRAPES))
        body = "".join(f"{line}\n" for line in lines).encode()
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Router)
    Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("served\n")
    sys.stdout.flush()
    sys.stdin.readline()
