"""W&B's own sampling in worker processes, for the run of another process in shared mode.

    # wandb: {mode: shared, system_metrics: {enabled: true, roles: [trainer, generator]}}
    otel_rl.integrations.wandb_workers.join(config.wandb, run="entity/project/run_id")

The process that calls ``wandb.init`` often has no GPU. Each worker then joins the run as an
additional client, which samples its own machine, labels it with its role and index, and never
finishes or marks the run. Use it for W&B's own system metrics. ``init(gpu=True)`` also puts them on
the axes of the run, needs no connection from every worker to W&B, and counts a device shared by
several workers once.
"""

import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_rl.errors import ConfigError
from otel_rl.worker import session

if TYPE_CHECKING:
    import wandb

__all__ = ["SystemMetrics", "join", "leave"]

_log = logging.getLogger("otel_rl")

_SHARED: Final = "shared"
_SERVICE: Final = "WANDB_SERVICE"
_OPTIONS: Final = {"enabled": bool, "roles": str, "gpu_device_ids": int}


class SystemMetrics(NamedTuple):
    """Selection of the workers that W&B samples.

    Attributes:
        enabled: Whether any worker is sampled.
        roles: Roles of sampled workers; None for all.
        gpu_device_ids: Numbers of sampled devices; None for W&B's own choice.
    """

    enabled: bool = False
    roles: Sequence[str] | None = None
    gpu_device_ids: Sequence[int] | None = None

    @classmethod
    def parse(cls, config: Mapping[str, object]) -> "SystemMetrics":
        """Read ``mode`` and ``system_metrics`` of a W&B section of a configuration.

        Raises:
            ConfigError: An option is wrong, or the run is not in shared mode.
        """
        given: Any = config.get("system_metrics") or {}
        if not isinstance(given, Mapping):
            raise _wrong("", f"must be a mapping (got {given!r})")
        for name, value in given.items():
            kind = _OPTIONS.get(name)
            if kind is None:
                raise _wrong(f".{name}", "unknown option")
            if kind is bool and not isinstance(value, bool):
                raise _wrong(f".{name}", f"must be true or false (got {value!r})")
            is_list = isinstance(value, list | tuple) and all(type(one) is kind for one in value)
            if kind is not bool and value is not None and not is_list:
                raise _wrong(f".{name}", f"must be a list of {kind.__name__} (got {value!r})")
        mode = config.get("mode") or os.environ.get("WANDB_MODE", "")
        if given.get("enabled") and mode != _SHARED:
            raise ConfigError(
                f"system_metrics.enabled: workers can join a run in shared mode only "
                f"(got mode {mode!r}).",
                hint="Set mode: shared, and begin the run with "
                'wandb.init(mode="shared", settings=wandb.Settings(x_primary=True)).',
            )
        return cls(**given)

    def are_for(self, role: str) -> bool:
        return self.enabled and (self.roles is None or role in self.roles)


def _wrong(option: str, complaint: str) -> ConfigError:
    return ConfigError(
        f"system_metrics{option}: {complaint}.",
        hint="Write system_metrics: {enabled: true, roles: [trainer], gpu_device_ids: [0]}, or "
        "leave out roles and gpu_device_ids for all.",
    )


# _lock guards everything below.
_lock = threading.Lock()
_joined: "wandb.Run | None" = None


def join(
    config: Mapping[str, object],
    *,
    run: str = "",
    role: str = "",
    index: int | None = None,
    interval_s: float = 15.0,
    timeout_s: float = 60.0,
) -> bool:
    """Let W&B sample this process and its machine into a run, if configured.

    Idempotent. Blocks while W&B connects. Failures are logged as a warning: training goes on.

    Args:
        config: W&B's section of the user's configuration, see ``SystemMetrics.parse``.
        run: The run, as ``[[ENTITY/]PROJECT/]RUN_ID``; default ``WANDB_RUN_ID``.
        role: Role of this worker; default from ``otel_rl.init``.
        index: Index of this worker; default from ``otel_rl.init``.
        interval_s: Seconds between two samples.
        timeout_s: Maximum seconds for the connection to W&B.

    Returns:
        True if this process is now a client of the run.

    Raises:
        ConfigError: The configuration is wrong.
    """
    selection = SystemMetrics.parse(config)
    worker = session.running()
    if not role and worker is not None:
        role, index = worker.identity.role, worker.identity.index
    if not selection.are_for(role):
        return False
    *place, run_id = (run or os.environ.get("WANDB_RUN_ID", "")).split("/")
    if not run_id:
        raise ConfigError("run: must name a W&B run.", hint="Pass run=..., or set WANDB_RUN_ID.")
    global _joined  # one client per process
    with _lock:
        if _joined is None:
            try:
                import wandb  # only W&B's users have it

                with _without_inherited_service():
                    _joined = wandb.init(
                        id=run_id,
                        project=place[-1] if place else None,
                        entity=place[0] if len(place) > 1 else None,
                        reinit="create_new",  # other runs of the process stay separate
                        settings=wandb.Settings(
                            mode=_SHARED,
                            init_timeout=timeout_s,
                            x_primary=False,
                            x_update_finish_state=False,
                            x_label=role if index is None else f"{role}_{index}",
                            x_stats_sampling_interval=interval_s,
                            x_stats_gpu_device_ids=selection.gpu_device_ids,
                            console="off",
                            silent=True,
                            disable_git=True,
                            disable_code=True,
                            save_code=False,
                            x_save_requirements=False,
                        ),
                    )
            except Exception as error:  # noqa: BLE001  # nothing may raise into training code
                _log.warning(
                    "W&B does not sample this worker: %s: %s. Training is not affected.",
                    type(error).__name__,
                    error,
                )
        return _joined is not None


def leave() -> None:
    """Stop sampling, and leave the run as it is. Idempotent; never raises."""
    global _joined  # see join
    with _lock:
        run, _joined = _joined, None
        if run is not None:
            try:
                run.finish()
            except Exception as error:  # noqa: BLE001  # see join
                _log.warning("Leaving the W&B run failed: %s", error)


@contextmanager
def _without_inherited_service() -> Iterator[None]:
    """Let W&B start a service for this process.

    A service inherited from the run's owner refuses a second client of the same run.
    """
    inherited = os.environ.pop(_SERVICE, None)
    try:
        yield
    finally:
        if inherited is not None:
            os.environ.setdefault(_SERVICE, inherited)


def _forget() -> None:
    global _lock, _joined
    _lock, _joined = threading.Lock(), None


os.register_at_fork(after_in_child=_forget)
