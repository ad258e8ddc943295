r"""Proof that weights arrived: a digest of what is pushed, compared with what a server loaded.

    trainer    text = lineage.signed(lineage.stamp(policy_version=7), tensors)   -- push -->
    server     lineage.link_weights(text); load; lineage.verify(text, tensors)

A version is only a claim. Tensors that both sides name as equal prove it. ``lineage`` has the names
of this module.

A digest is BLAKE2b of 8 bytes, in hexadecimal digits, over the following for each tensor in order:

    "<name>:<shape, its numbers with x between them>\n"    in UTF-8; in a list its place is the name
    of the flat tensor the elements 0, s, 2 s, ...          in bfloat16, little-endian

where s is 1 for up to 4,096 elements, else their number divided by 4,096, up to the next odd one.
"""

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

from otel_rl.semconv import names
from otel_rl.semconv.spec import described
from otel_rl.version import __version__
from otel_rl.worker import session

_SCOPE: Final = "otel_rl.carrier"

_SAMPLE: Final = 4096
"""Elements of a tensor: a change of weights changes nearly all of them."""

_PART: Final = ";d="

_known: Final[deque[str]] = deque(maxlen=128)
"""Digests of weights that this process was sent, or had, the newest last."""


def digest(tensors: Mapping[str, Any] | Iterable[Any]) -> str:
    """Return a digest of tensors that is equal where their values are, on any device and layout.

    Of a large tensor 4,096 evenly spaced elements count. Values are rounded to bfloat16, so that a
    trainer in float32 and a server in bfloat16 agree; float16 and quantised weights do not. The
    call waits for the device once: make it where weights are pushed or loaded, which waits anyway.
    By arithmetic it copies 8 KB of a tensor to the host, 2.4 MB of 300.

    Args:
        tensors: Tensors of torch or numpy, by names that both sides use, or in one order. Name the
            same parts on both sides: of a shard only its own rank has the digest.

    Raises:
        TypeError: A tensor is of neither library.
    """
    named = (
        sorted(tensors.items())
        if isinstance(tensors, Mapping)
        else [(str(place), one) for place, one in enumerate(tensors)]
    )
    samples = [_sampled(tensor) for _, tensor in named]
    hashed = blake2b(digest_size=8)
    for (name, tensor), values in zip(named, _on_host(samples), strict=True):
        hashed.update(f"{name}:{'x'.join(map(str, tensor.shape))}\n".encode())
        hashed.update(values)
    return hashed.hexdigest()


def signed(stamp: str, tensors: Mapping[str, Any] | Iterable[Any]) -> str:
    """Return the ``lineage.stamp`` of weights with their ``digest``. Never raises.

    ``link_weights`` accepts the result like a stamp. See ``digest`` for the cost.
    """
    with session.GUARD:
        return f"{stamp}{_PART}{digest(tensors)}"
    return stamp


def verify(weights: str, tensors: Mapping[str, Any] | Iterable[Any]) -> bool | None:
    """Return whether the tensors that a server has loaded are those that were sent. Never raises.

    Records ``rl.policy.weights.checked`` as equal, stale (they are those of an earlier push, or of
    the last check), different (a wrong shard, another layout, a damaged transfer) or unsigned. Call
    it after weights are loaded, with what the server computes with. See ``digest`` for the cost.

    Args:
        weights: Text that ``signed`` returned.
        tensors: Tensors with the names or in the order of ``signed``.

    Returns:
        Whether they are equal; None if that cannot be told, as the stamp has no digest.
    """
    with session.GUARD:
        sent = weights.partition(_PART)[2].partition(";")[0]
        states = names.RlWeightsStateValues
        if not sent:
            _record(states.UNSIGNED)
            return None
        found = digest(tensors)
        state = states.STALE if found in _known else states.DIFFERENT
        _record(states.EQUAL if found == sent else state)
        _known.extend(one for one in {sent, found} if one not in _known)
        return found == sent
    return None


def _record(state: str) -> None:
    current = session.running() or session.start_from_environment()
    if current is not None:
        meter = current.providers.meter.get_meter(_SCOPE, __version__)
        checked = meter.create_counter(*described(names.RL_POLICY_WEIGHTS_CHECKED))
        checked.add(1, {names.RL_WEIGHTS_STATE: str(state)})


def _sampled(tensor: Any) -> Any:
    if not hasattr(tensor, "shape") or not hasattr(tensor, "reshape"):
        raise TypeError(f"a tensor of torch or an array of numpy (got {type(tensor).__name__})")
    detach = getattr(tensor, "detach", None)
    flat = (tensor if detach is None else detach()).reshape(-1)
    return flat[:: -(-len(flat) // _SAMPLE) | 1] if len(flat) > _SAMPLE else flat


def _on_host(samples: Sequence[Any]) -> Iterable[bytes]:
    """Yield each sample's values in bfloat16. Samples of torch are copied from a device at once."""
    of_torch = [one for one in samples if hasattr(one, "detach")]
    if not samples:
        return []
    if len(of_torch) < len(samples):
        return [_rounded(one.numpy() if hasattr(one, "detach") else one) for one in samples]
    torch = sys.modules["torch"]
    device = of_torch[0].device
    parts = [one.to(device=device, dtype=torch.bfloat16).view(torch.int16) for one in of_torch]
    whole = torch.cat(parts).cpu().numpy().tobytes()
    ends = [0]
    for one in of_torch:
        ends.append(ends[-1] + 2 * len(one))
    return [whole[begin:end] for begin, end in pairwise(ends)]


def _rounded(values: Any) -> bytes:
    """Round numpy's values to the nearest bfloat16, ties to even, as torch does."""
    numpy = sys.modules["numpy"]
    exact = numpy.ascontiguousarray(values, dtype=numpy.float32)
    bits = exact.view(numpy.uint32).astype(numpy.uint64)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    near[numpy.isnan(exact)] = 0x7FC0
    rounded: bytes = near.astype("<u2").tobytes()
    return rounded
