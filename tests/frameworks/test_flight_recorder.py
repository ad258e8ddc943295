"""Dumps that PyTorch itself writes while a collective hangs."""

from tests.frameworks.conftest import Runner
from tests.support.ports import free_ports

SCRIPT = """
    import datetime, os, subprocess, sys, threading, time
    import torch, torch.distributed as dist
    from otel_rl.worker.phases.flight_recorder import collective_in_words

    rank, port = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2,
        timeout=datetime.timedelta(seconds=300),
    )
    ones = torch.ones(4)
    dist.all_reduce(ones)
    if rank == 0:
        threading.Thread(target=dist.all_reduce, args=(ones,), daemon=True).start()
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        torch._C._distributed_c10d._dump_fr_trace_file(rank)
        words = collective_in_words(os.environ, 0)
        if "without" in words:
            print(words, flush=True)
            break
        time.sleep(0.2)
    os._exit(0)
"""


def test_the_rank_that_is_not_in_a_collective_of_gloo_is_named(frameworks: Runner) -> None:
    path = frameworks.script(SCRIPT, "hang.py")
    (port,) = free_ports(1)
    both = f"{frameworks.python} {path} 1 {port} & {frameworks.python} {path} 0 {port}; wait"
    done = frameworks.start(
        "sh", "-c", both,
        env={
            "TORCH_FR_BUFFER_SIZE": "200",
            "TORCH_FR_DUMP_TEMP_FILE": str(frameworks.directory / "trace_"),
        },
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "gloo:all_reduce (number 2 of group 0) is without rank 1" in done.out
