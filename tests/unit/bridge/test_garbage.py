"""Collections of cyclic garbage in a process that handles rows."""

import gc
import platform
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from otel_rl.bridge.garbage import collect_rarely

_CODE = """
import gc
{first}
gc.collect()
before = sum(one["collections"] for one in gc.get_stats())
kept = [[(n, 0.5)] for n in range(100_000)]
print(sum(one["collections"] for one in gc.get_stats()) - before)
"""

_COMMAND = """
from otel_rl.cli.main import main
try:
    main(["no-such-command"])
except SystemExit:
    pass
"""


@pytest.mark.process
def test_open_steps_cause_few_collections_in_a_command() -> None:
    default, rare = (
        int(
            subprocess.run(
                [sys.executable, "-c", _CODE.format(first=first)], check=True, capture_output=True
            ).stdout
        )
        for first in ("", _COMMAND)
    )
    assert 0 < rare * 10 < default


def test_cyclic_garbage_is_still_collected() -> None:
    class Cycle:
        me: "Cycle"

    before = gc.get_threshold()
    try:
        collect_rarely()
        lost = Cycle()
        lost.me = lost
        seen = weakref.ref(lost)
        del lost
        kept = [[n] for n in range(100_000)]
        assert kept
        assert seen() is None
    finally:
        gc.set_threshold(*before)


@pytest.mark.process
def test_exit_hooks_run_without_the_last_collections() -> None:
    code = """
import atexit, gc
from otel_rl.bridge.garbage import skip_last_collections

class Cycle:
    def __init__(self):
        self.me = self
    def __del__(self):
        print("collected")

gc.disable()
atexit.register(print, "exit hook")
Cycle()
skip_last_collections()
"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout == "exit hook\n"


@pytest.mark.process
def test_a_command_ends_without_the_last_collections() -> None:
    code = """
import atexit, gc, sys
from otel_rl.cli.entry import main

atexit.register(lambda: print("kept", gc.get_freeze_count() > 0))
sys.argv = ["otel-rl", "help"]
sys.exit(main())
"""
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.endswith("\nkept True\n")


_HEAPS = """
import ctypes, sys, threading
from otel_rl.bridge.garbage import return_memory
{first}
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
all_have = threading.Barrier(4)

def allocate():
    libc.malloc(ctypes.c_size_t(100_000))
    all_have.wait()

threads = [threading.Thread(target=allocate) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(open(sys.argv[1]).read().count("<heap nr="))
"""


@pytest.mark.process
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_info is glibc's")
def test_threads_share_one_heap(tmp_path: Path) -> None:
    default, shared = (
        int(
            subprocess.run(
                [sys.executable, "-c", _HEAPS.format(first=first), str(tmp_path / "heaps.xml")],
                check=True,
                capture_output=True,
                env={},
            ).stdout
        )
        for first in ("", "return_memory()")
    )
    assert default > 1
    assert shared == 1
