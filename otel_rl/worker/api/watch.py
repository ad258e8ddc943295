"""``otel_rl.watch``: gradients and updates of a torch model, by group of parameters.

    optimizer.step()  -- pre-hook -->  norms on the device  -- one copy, not waited for -->  export
                      -- post-hook --> the change of a sample of the parameters  ------^

No torch is imported here: the functions use the module of the program's own model.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from typing import Any, Final, NamedTuple, TypeVar

from otel_rl.semconv import names
from otel_rl.semconv.spec import described
from otel_rl.version import __version__
from otel_rl.worker import session
from otel_rl.worker.tensors import hold_each, torch_cuda

_SCOPE: Final = "otel_rl.watch"

_MAX_GROUPS: Final = 64
"""Groups with values of their own; parameters of further ones are in the group ``other``."""

_OTHER: Final = "other"

_SAMPLE: Final = 1 << 16
"""Elements of a parameter whose change is measured: evenly spaced over it, all of a smaller one."""

_T = TypeVar("_T")

_Held = tuple[str, str, object]
"""Metric, group and value, of which the device has the number."""

_WRAPPERS: Final = frozenset({"_fsdp_wrapped_module", "_orig_mod", "module"})
"""Parts of a parameter's name that DDP, FSDP and ``torch.compile`` add."""


def watch(
    model: Any,
    optimizer: Any,
    *,
    groups: Callable[[str], str] | None = None,
    every: int = 1,
) -> "Watched":
    """Measure gradients and updates of a torch model at each step of its optimizer.

    Never raises, never waits for a device, never communicates. Call it once, on every rank, after
    the model is wrapped and the optimizer made. The values belong to the ``otel_rl.step`` around
    ``optimizer.step()``; without one, to their time.

    Records of each group, and of the whole model without a group:

    - ``rl.train.grad.abs_max`` and ``rl.train.grad.mean_square``, and
      ``rl.train.grad.applied.norm``: of the gradient as the optimizer gets it, accumulated over
      all backward passes, unscaled, and after clipping. ``Watched.before_clipping`` measures it
      before clipping.
    - ``rl.train.update.norm``: of the change of the parameters, by 65,536 evenly spaced elements of
      each parameter: exact up to that size, an estimate beyond.

    Mixed precision: gradients that a ``GradScaler`` has scaled are divided by its scale, also for
    optimizers that are fused; a step that it skips has no values. Only a fused optimizer on a GPU
    skips without telling the host: there such a step has the values of the overflow. Norms are
    added up in float32.
    ``DistributedDataParallel``: every rank has the whole gradient. FSDP2 (``DTensor``): each rank
    measures its own shards; of ``abs_max`` and ``mean_square`` the run has the exact value, norms
    are extrapolated from the rank's shard to the whole. FSDP1: no norms, for its shards do not
    know the whole. Sparse gradients are left out, and so is a step within a CUDA graph. Not
    measured: optimizers that are no ``torch.optim.Optimizer``, as DeepSpeed's and Megatron's.

    Cost, in the training thread: 36 us of CPU time for each parameter, a tensor and not an element,
    to launch its reductions (measured: 300 tensors, a busy CPU): 11 ms a step. On the device two
    readings of all gradients. In its memory the sample, made once: 131,072 bytes for a parameter of
    more than 65,536 elements in bfloat16, and as much as the parameter for others: by arithmetic
    40 MB for a transformer of a billion parameters in 300 tensors.

    Args:
        model: A ``torch.nn.Module``.
        optimizer: Its ``torch.optim.Optimizer``, with any number of parameter groups; or
            accelerate's wrapper of one.
        groups: Returns the group's name for the name of a parameter, as in
            ``model.named_parameters()``. Default: the first part of the name in which parameters
            differ, for example ``embed_tokens``, ``layers``, ``norm`` and ``lm_head``.
        every: Number of optimizer steps from one measured step to the next.

    Returns:
        The watched model and optimizer; ``close`` ends the measurements.
    """
    watched = Watched(model, groups, every)
    with session.GUARD:
        while hasattr(inner := getattr(optimizer, "optimizer", None), "register_step_pre_hook"):
            optimizer = inner
        if not hasattr(optimizer, "register_step_pre_hook"):
            session.GUARD.warn(
                "watch",
                "otel_rl.watch needs a torch.optim.Optimizer "
                f"(got {type(optimizer).__name__}); it measures nothing.",
            )
            return watched
        watched._follow(optimizer)  # noqa: SLF001  # its other half
    return watched


class _Measured(NamedTuple):
    """Gradient of one parameter: scalars on its device; elements on this rank and in all."""

    largest: Any
    norm: Any
    size: int
    whole: int


class Watched:
    """Model and optimizer that ``watch`` follows. One thread trains."""

    def __init__(self, model: Any, groups: Callable[[str], str] | None, every: int) -> None:
        self._model = model
        self._optimizer: Any = None
        self._of_name = groups
        self._every = max(1, every)
        self._steps = 0
        self._groups: dict[int, str] = {}
        self._is_flat = False
        self._hooks: list[Any] = []
        # Of the gradient before clipping. Recorded in the step, which a GradScaler may skip.
        self._unclipped: Sequence[_Held] = ()
        self._samples: dict[int, Any] = {}
        self._before: list[tuple[Any, Any, str]] = []

    def _follow(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._hooks = [
            optimizer.register_step_pre_hook(self._on_step),
            optimizer.register_step_post_hook(self._on_stepped),
        ]

    def before_clipping(self) -> None:
        """Measure the gradient of the coming step now. Never raises, never waits for a device.

        Call it after the last ``backward`` (and ``GradScaler.unscale_``) and before the gradient is
        clipped, or as well without any clipping. The step then records ``rl.train.grad.norm``, and
        ``rl.train.grad.abs_max`` and ``.mean_square`` as they are now; a step that a ``GradScaler``
        skips records nothing.
        """
        with session.GUARD:
            if self._is_due():
                self._unclipped = _held(
                    (
                        names.RL_TRAIN_GRAD_ABS_MAX,
                        names.RL_TRAIN_GRAD_MEAN_SQUARE,
                        names.RL_TRAIN_GRAD_NORM,
                    ),
                    self._gradients(),
                )

    def close(self) -> None:
        """Stop measuring, and forget model and optimizer. Idempotent."""
        hooks, self._hooks = self._hooks, []
        for hook in hooks:
            with session.GUARD:
                hook.remove()
        self._before, self._samples, self._groups, self._unclipped = [], {}, {}, ()
        self._model = self._optimizer = None

    def _is_due(self) -> bool:
        cuda = torch_cuda()
        if self._optimizer is None or self._steps % self._every or session.running() is None:
            return False
        return not (cuda is not None and cuda.is_available() and cuda.is_current_stream_capturing())

    def _is_skipped(self) -> bool:
        """Return whether a fused optimizer will skip the step; not known yet on a device."""
        overflow = getattr(self._optimizer, "found_inf", None)
        return overflow is not None and not overflow.is_cuda and bool(overflow)

    def _on_step(self, _optimizer: Any, _arguments: Any, _named: Any) -> None:
        with session.GUARD:
            unclipped, self._unclipped = self._unclipped, ()
            self._before = []
            if not self._is_due() or self._is_skipped():
                return
            self._record(unclipped)
            more = (
                (None, None)
                if unclipped
                else (names.RL_TRAIN_GRAD_ABS_MAX, names.RL_TRAIN_GRAD_MEAN_SQUARE)
            )
            self._record(_held((*more, names.RL_TRAIN_GRAD_APPLIED_NORM), self._gradients()))
            for group, parameter, _ in self._with_gradients():
                self._before.append((parameter, self._kept(parameter), group))

    def _on_stepped(self, _optimizer: Any, _arguments: Any, _named: Any) -> None:
        before, self._before = self._before, []
        with session.GUARD:
            self._steps += 1
            if not before or self._is_flat:
                return
            changes: dict[str, list[Any]] = {}
            norm = sys.modules["torch"].linalg.vector_norm
            for parameter, sample, group in before:
                # In place and in the type of the parameters: of near values it is exact.
                change = norm(sample.sub_(_sampled(parameter)), dtype=sys.modules["torch"].float32)
                whole = sqrt(parameter.numel() / max(1, sample.numel()))
                changes.setdefault(group, []).append(change if whole == 1.0 else change * whole)
            norms = {group: (self._norm_of(some),) for group, some in _with_whole(changes).items()}
            self._record(_held((names.RL_TRAIN_UPDATE_NORM,), norms))

    def _kept(self, parameter: Any) -> Any:
        """Return a copy of the sample of a parameter, in memory that is allocated once."""
        sample, kept = _sampled(parameter), self._samples.get(id(parameter))
        if kept is None or (kept.shape, kept.dtype, kept.device) != (
            (sample.shape, sample.dtype, sample.device)
        ):
            kept = self._samples[id(parameter)] = sample.clone()
            return kept
        return kept.copy_(sample)

    def _gradients(self) -> Mapping[str, Sequence[Any]]:
        """Return (largest element, mean square, norm) of each group, and of all under ''."""
        torch = sys.modules["torch"]
        norm, dtype = torch.linalg.vector_norm, torch.float32
        measured: dict[str, list[_Measured]] = {}
        for group, parameter, gradient in self._with_gradients():
            # One pass without a copy; the norm of order infinity takes ten times as long on a CPU.
            least, most = torch.aminmax(gradient)
            measured.setdefault(group, []).append(
                _Measured(
                    torch.maximum(-least, most).to(dtype),
                    norm(gradient, dtype=dtype),
                    gradient.numel(),
                    parameter.numel(),
                )
            )
        if not measured:
            return {}
        scale = getattr(self._optimizer, "grad_scale", None)
        found: dict[str, Sequence[Any]] = {}
        for group, some in _with_whole(measured).items():
            size, whole = sum(one.size for one in some), sum(one.whole for one in some)
            own = self._norm_of([one.norm for one in some])
            most = torch.stack(_together([one.largest for one in some])).max()
            if scale is not None:
                own, most = own / scale, most / scale
            found[group] = (most, own * own / size, own * sqrt(whole / size))
        return found

    def _norm_of(self, norms: Sequence[Any]) -> Any:
        torch = sys.modules["torch"]
        return torch.linalg.vector_norm(torch.stack(_together(norms)))

    def _with_gradients(self) -> Iterable[tuple[str, Any, Any]]:
        """Yield (group, parameter, this rank's gradient) for parameters that the step changes."""
        for part in self._optimizer.param_groups:
            for parameter in part["params"]:
                gradient = parameter.grad
                if gradient is None or gradient.is_sparse:
                    continue
                own = _local(gradient.detach())
                if own.numel():
                    yield self._group(parameter), parameter, own

    def _group(self, parameter: Any) -> str:
        found = self._groups.get(id(parameter))
        if found is None:
            self._name_groups()  # parameters were added, or sharded
            found = self._groups.setdefault(id(parameter), _OTHER)
        return found

    def _name_groups(self) -> None:
        parameters = {
            ".".join(part for part in name.split(".") if part not in _WRAPPERS): parameter
            for name, parameter in self._model.named_parameters()
        }
        of_name = self._of_name or _by_first_difference(parameters)
        named: set[str] = set()
        for name, parameter in parameters.items():
            group = str(of_name(name))
            if group in named or len(named) < _MAX_GROUPS:
                named.add(group)
            else:
                group = _OTHER
            self._groups[id(parameter)] = group
        self._is_flat = any(
            type(module).__name__ == "FullyShardedDataParallel" for module in self._model.modules()
        )

    def _record(self, held: Iterable[_Held]) -> None:
        current = session.running()
        if current is None:
            return
        meter = current.providers.meter.get_meter(_SCOPE, __version__)
        for metric, group, value in held:
            if self._is_flat and metric.endswith(".norm"):
                continue
            attributes = {names.RL_PARAMETER_GROUP: group} if group else None
            meter.create_gauge(*described(metric)).set(value, attributes)  # type: ignore[arg-type]  # held, as of a tensor


def _held(metrics: Sequence[str | None], values: Mapping[str, Sequence[Any]]) -> Sequence[_Held]:
    """Return the values of groups for each metric, on their way to the host."""
    if not values:
        return ()
    flat = [value for some in values.values() for value in some]
    held = hold_each(sys.modules["torch"].stack(_together(flat)), len(flat))
    places = [(metric, group) for group in values for metric in metrics]
    return [
        (metric, group, value)
        for (metric, group), value in zip(places, held, strict=True)
        if metric is not None
    ]


def _with_whole(of: Mapping[str, list[_T]]) -> Mapping[str, Sequence[_T]]:
    """Return the groups, and all values together as the group '' if there are several groups."""
    return {"": [one for some in of.values() for one in some], **(of if len(of) > 1 else {})}


def _local(tensor: Any) -> Any:
    """Return this rank's part of a ``DTensor``, and any other tensor as it is."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def _sampled(parameter: Any) -> Any:
    """Return evenly spaced elements: an odd distance meets all columns of most matrices."""
    flat = _local(parameter.detach()).reshape(-1)
    return flat[:: -(-flat.numel() // _SAMPLE) | 1] if flat.numel() > _SAMPLE else flat


def _together(values: Sequence[Any]) -> Sequence[Any]:
    """Return scalars on the device of the first one, as a model may lie on several devices."""
    device = values[0].device
    return [one if one.device == device else one.to(device, non_blocking=True) for one in values]


def _by_first_difference(names_of_all: Iterable[str]) -> Callable[[str], str]:
    """Return the first part of a name in which the names differ."""
    split = [name.split(".") for name in names_of_all]
    depth = 0
    while split and all(len(one) > depth + 1 for one in split):
        if len({one[depth] for one in split}) > 1:
            break
        depth += 1
    return lambda name: name.split(".")[depth]
