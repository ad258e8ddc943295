"""OTLP endpoint that discards all requests, in a process of its own."""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"


@contextlib.contextmanager
def sink() -> Iterator[str]:
    """Run one; yields its base URL."""
    command = [sys.executable, "-m", "bench.sink"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("The sink has no standard output.")
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def _serve(connection: socket.socket) -> None:
    received = b""
    while True:
        head, end, body = received.partition(b"\r\n\r\n")
        if end:
            (length,) = (
                int(line.split(b":")[1])
                for line in head.splitlines()
                if line.lower().startswith(b"content-length:")
            )
            missing = length - len(body)
            while missing > 0:
                missing -= len(connection.recv(min(missing, 1 << 20)))
            connection.sendall(_OK)
            received = b""
            continue
        chunk = connection.recv(1 << 16)
        if not chunk:
            return
        received += chunk


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
