"""Hyper-parameters that a sweep of W&B gives to a run: its agent writes them into a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["PARAMETERS", "parameters"]

PARAMETERS: Final = "WANDB_SWEEP_PARAM_PATH"
"""Variable with the path of that YAML file, for the run and its children."""


def parameters(environ: Mapping[str, str]) -> Mapping[str, object]:
    """Return the name and value of each hyper-parameter. Never raises: a wrong file is counted.

    Args:
        environ: Of the run.
    """
    path = environ.get(PARAMETERS)
    if not path:
        return {}
    try:
        import yaml  # with wandb, in a process of a sweep only

        loaded = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        return {name: of["value"] for name, of in loaded.items() if name != "wandb_version"}
    except Exception as error:  # noqa: BLE001  # another version's file; the run goes on without
        from otel_rl.integrations.adapter import guard
        from otel_rl.worker.drops import DropReason

        guard.drop(
            DropReason.BAD_ATTRIBUTES,
            f"The run's config lacks the hyper-parameters in {path}: {error}",
        )
        return {}
