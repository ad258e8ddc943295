"""Runs when Python starts, in every process below ``otel-rl run``, by way of PYTHONPATH.

The module waits for the import of a framework, and then loads otel_rl. A process without such an
import, or with a Python that is old or has no otel_rl, is unaffected. The ``sitecustomize`` that
this one shadows runs, too.
"""

import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120  # cheaper than pathlib

_FRAMEWORKS = frozenset(
    (
        "areal",
        "forge",
        "hydra",
        "ray.rllib",
        "ray.train",
        "ray.tune",
        "stable_baselines3",
        "tensorboardX",
        "torch.utils.tensorboard",
        "transformers",
        "verl",
        "wandb",
    )
)


class _FirstImport:
    """Detects the first import of a framework. It finds no module itself."""

    def find_spec(self, fullname, path=None, target=None):  # type: ignore[no-untyped-def]  # of any Python
        if fullname not in _FRAMEWORKS or self not in sys.meta_path:
            return None
        try:
            sys.meta_path.remove(self)
            known = list(sys.meta_path)
            from otel_rl.integrations.automatic import wait

            wait()
            # The import that is going on asks only the finders behind this one.
            new = [finder for finder in sys.meta_path if finder not in known]
            return new[0].find_spec(fullname, path, target) if new else None
        except Exception as error:  # noqa: BLE001  # the program's import goes on; logged only
            sys.stderr.write("otel_rl: %s is not recorded: %s\n" % (fullname, error))  # noqa: UP031  # of any Python
            return None


def _join_sweep() -> None:
    try:
        from otel_rl.integrations.automatic import join_sweep

        join_sweep()
    except Exception as error:  # noqa: BLE001  # as above
        sys.stderr.write("otel_rl: this run of the sweep is not told apart: %s\n" % error)  # noqa: UP031


def _run_the_next() -> None:
    """Run the ``sitecustomize`` that Python would have run."""
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != _HERE]
    finders = [finder for finder in sys.meta_path if not isinstance(finder, _FirstImport)]
    specs = (finder.find_spec("sitecustomize", None) for finder in finders)
    spec = next(filter(None, specs), None)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec  # here, because it costs a millisecond

        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


_NAMED = os.environ.get("OTEL_RL_EXPERIMENT") or os.environ.get("OTEL_RL_DEFAULT_EXPERIMENT")
if os.environ.get("OTEL_RL_ADAPTERS") == "auto" and _NAMED:
    sys.meta_path.insert(0, _FirstImport())
    if os.environ.get("WANDB_SWEEP_ID"):
        _join_sweep()
_run_the_next()
