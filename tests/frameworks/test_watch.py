"""``otel_rl.watch`` measures what torch computes: in a plain loop, by shards, and in TRL's GRPO."""

import json
from collections import defaultdict

import pytest

from tests.frameworks.conftest import Runner
from tests.frameworks.test_trl import STEPS, TRAINER
from tests.process.commands import jsonl_rows

LOOP = """
    import json, math, torch, otel_rl

    otel_rl.init(experiment="real", role="trainer", index=0, count=1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Embedding(3000, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 8)
    )
    optimizer = torch.optim.AdamW([
        {"params": model[0].parameters(), "lr": 0.01},
        {"params": [*model[1].parameters(), *model[2].parameters()], "lr": 0.001},
    ])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    watched = otel_rl.watch(model, optimizer, groups=lambda name: "ends"[: 4 - int(name[0])])
    torch.cuda.synchronize = torch.cuda.Event = None  # whatever waits for a device fails

    def norms(parts):
        return math.sqrt(sum(part.double().square().sum().item() for part in parts))

    expected = []
    for step in range(1, 6):
        with otel_rl.step(step):
            optimizer.zero_grad()
            for _ in range(2):  # accumulated
                tokens = torch.randint(0, 3000, (4, 16))
                scaler.scale(model(tokens).square().mean() / 2).backward()
            scaler.unscale_(optimizer)
            watched.before_clipping()
            parameters = [*model.parameters()]
            row = {
                "grad/norm": norms(p.grad for p in parameters),
                "grad/abs_max": max(p.grad.abs().max().item() for p in parameters),
                "grad/mean_square": norms(p.grad for p in parameters) ** 2
                / sum(p.numel() for p in parameters),
                "grad/norm/ends": norms(p.grad for p in model[0].parameters()),
            }
            torch.nn.utils.clip_grad_norm_(parameters, row["grad/norm"] / 2)
            row["grad/applied/norm"] = norms(p.grad for p in parameters)
            before = [p.detach().clone() for p in parameters]
            scaler.step(optimizer)
            scaler.update()
            changes = [p.detach() - q for p, q in zip(parameters, before)]
            row["update/norm/end"] = norms(changes[1:3])
            row["update/norm"] = norms(changes)
            expected.append(row)
            for parameter in parameters:
                parameter.grad.fill_(7.0)  # as a loop may, before anything is exported
    watched.close()
    with otel_rl.step(6):
        optimizer.step()
    weights = {"a": torch.randn(301, 70), "b": torch.randn(9)}
    same = [
        {name: one.bfloat16() for name, one in weights.items()},
        {name: one.numpy() for name, one in weights.items()},
        {name: one.t().contiguous().t() for name, one in weights.items()},
    ]
    assert {otel_rl.lineage.digest(one) for one in same} == {otel_rl.lineage.digest(weights)}
    other = {**weights, "b": torch.zeros(9)}
    assert otel_rl.lineage.digest(other) != otel_rl.lineage.digest(weights)
    print("expected", json.dumps(expected))
"""

SHARDS = """
    import os, json, math, torch, otel_rl
    import torch.distributed as dist
    import torch.multiprocessing as mp

    def work(rank):
        from torch.distributed.fsdp import fully_shard
        os.environ.update(RANK=str(rank), WORLD_SIZE="2")
        store = dist.FileStore("store", 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        otel_rl.init(experiment="real", role="trainer", index=rank, count=2)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        otel_rl.watch(model, optimizer)
        rows = []
        for step in range(1, 4):
            with otel_rl.step(step):
                torch.manual_seed(10 * step + rank)
                optimizer.zero_grad()
                model(torch.randn(8, 64)).square().mean().backward()
                whole = [p.grad.full_tensor() for p in model.parameters()]
                total = sum(one.double().square().sum().item() for one in whole)
                rows.append({
                    "grad/abs_max": max(one.abs().max().item() for one in whole),
                    "grad/mean_square": total / sum(one.numel() for one in whole),
                    "grad/applied/norm": math.sqrt(total),
                    "update/norm": 0.5 * math.sqrt(total),
                })
                optimizer.step()
        if rank == 0:
            print("expected", json.dumps(rows), flush=True)
        otel_rl.flush()
        dist.destroy_process_group()

    if __name__ == "__main__":
        mp.spawn(work, nprocs=2)
"""

FULL = {"OTEL_RL_BRIDGE__TRACKER__DETAIL": "full"}

GRPO = (
    TRAINER.replace("OtelCallback()", "OtelCallback(watch=True)").replace(
        "max_steps=", "max_grad_norm=1e9, max_steps="
    )
    + """
    import json

    trainer.train()
    found = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    print("expected", json.dumps(found))
"""
)


def _expected(out: str) -> list[dict[str, float]]:
    (line,) = [line for line in out.splitlines() if line.startswith("expected ")]
    found: list[dict[str, float]] = json.loads(line.removeprefix("expected "))
    return found


def _by_step(frameworks: Runner) -> dict[int, dict[str, float]]:
    found: defaultdict[int, dict[str, float]] = defaultdict(dict)
    for row in jsonl_rows(frameworks.directory, "real"):
        found[row.step].update(row.values)
    return found


def test_a_plain_loop_has_what_torch_computes_before_and_after_clipping(
    frameworks: Runner,
) -> None:
    done = frameworks.run(LOOP, env=FULL)
    assert done.status == 0, done.err
    rows = _by_step(frameworks)
    for step, expected in enumerate(_expected(done.out), 1):
        for name, value in expected.items():
            # The embedding has 96,000 elements, whose change is estimated by each third.
            exact = 0.1 if name == "update/norm" else 1e-5
            assert rows[step][f"trainer/{name}"] == pytest.approx(value, rel=exact), name
    assert "trainer/update/norm" not in rows[6]


def test_shards_of_fsdp_add_up_to_the_whole(frameworks: Runner) -> None:
    done = frameworks.run(SHARDS, env=FULL)
    assert done.status == 0, done.err
    rows = _by_step(frameworks)
    for step, expected in enumerate(_expected(done.out), 1):
        for name, value in expected.items():
            exact = 0.02 if name.endswith("norm") else 1e-5
            assert rows[step][f"trainer/{name}"] == pytest.approx(value, rel=exact), name


def test_the_norm_is_that_which_trl_logs(frameworks: Runner) -> None:
    done = frameworks.run(GRPO, env=FULL)
    assert done.status == 0, done.err
    logged = _expected(done.out)
    assert len(logged) == STEPS
    rows = [
        (row.step, row.values["trainer/grad/applied/norm"], row.values["trainer/grad/norm"])
        for row in jsonl_rows(frameworks.directory, "real")
        if "trainer/grad/applied/norm" in row.values
    ]
    assert [step for step, _, _ in rows] == [*range(1, STEPS + 1)]
    assert [own for _, own, _ in rows] == pytest.approx(logged, rel=1e-4, abs=1e-7)
    assert [theirs for _, _, theirs in rows] == pytest.approx(logged, rel=1e-4, abs=1e-7)


SKIPPED = """
    import gc, json, math, weakref, torch, otel_rl

    otel_rl.init(experiment="real", role="trainer", index=0, count=1)
    for fused, at in ((False, 0), (True, 10)):
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        watched = otel_rl.watch(model, optimizer)
        with otel_rl.step(at + 1):  # without a gradient
            watched.before_clipping()
            optimizer.step()
        for step in (at + 2, at + 3):
            with otel_rl.step(step):
                optimizer.zero_grad()
                scaler.scale(model(torch.ones(2, 4)).sum()).backward()
                if step == at + 2:
                    model.weight.grad[0, 0] = math.inf
                if not fused:
                    scaler.unscale_(optimizer)
                watched.before_clipping()
                scaler.step(optimizer)
                scaler.update()
        watched.close()
        with otel_rl.step(at + 4):
            watched.before_clipping()
            optimizer.step()
        alive = [weakref.ref(model), weakref.ref(optimizer)]
        del model, optimizer, scaler
        gc.collect()
        assert [one() for one in alive] == [None, None], alive
    print("otel_rl drops", otel_rl.worker.session.GUARD.drops.counts())
"""


def test_a_step_that_is_skipped_has_no_values_and_close_forgets_the_model(
    frameworks: Runner,
) -> None:
    done = frameworks.run(SKIPPED, env=FULL)
    assert done.status == 0, done.err
    assert "otel_rl drops {}" in done.out, done.out
    rows = _by_step(frameworks)
    measured = {step for step, of in rows.items() if any("/grad/" in key for key in of)}
    assert measured == {3, 13}
    assert all("trainer/grad/norm" in rows[step] for step in measured)
