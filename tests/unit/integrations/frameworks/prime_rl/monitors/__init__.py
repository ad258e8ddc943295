"""prime-rl 559b44772."""

from pathlib import Path

from prime_rl.monitors.base import (  # type: ignore[import-not-found]  # beside this file
    Monitor,
)

MONITORS: list[Monitor] = []


async def setup(*, output_dir: Path, run_config: object = None) -> None:
    assert not MONITORS


async def log(data: object, step: int, kind: str = "train", subset: str = "effective") -> None:
    for monitor in MONITORS:
        await monitor.log(data, step=step, kind=kind, subset=subset)


async def finalize() -> None:
    for monitor in MONITORS:
        await monitor.finalize()
