"""Start of the ``otel-rl`` process: Ctrl-C while it loads or exits shows no traceback."""

import signal


def main() -> int:
    minds = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not under nohup
    if minds:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing has begun: it dies of the signal
    from otel_rl.bridge.garbage import skip_last_collections
    from otel_rl.cli.main import main as run_command  # takes long

    try:
        return run_command(loaded=_raise_interrupts if minds else lambda: None)
    finally:
        if minds:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the exit status is known
        skip_last_collections()


def _raise_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
