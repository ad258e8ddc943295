"""Links samples to the spans that generated them, from the generator to the trainer.

    generator                     buffer                       trainer
    lineage.inject(sample)  -->   {"tokens": ..., "otel_rl": stamp}  -->   lineage.link(batch)
                  lineage.score(sample, reward=...)

Minutes in a replay buffer separate the two, so training is not a part of the span that generated
the sample: its span *links* to it. A stamp is one line of text, W3C trace context first:

    00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01;v=7;s=411;t=1700000000000000000

with the policy version, the step and the time (ns since the Unix epoch); a sample that was scored
adds its reward, its length, how it ended and its group: ``;r=0.5;n=312;o=trained;g=q17``. It fits
wherever text does: a column of an array, a field of a message, a header.

``score`` sees every sample that is produced, ``link`` only samples that are trained on, so the run
shows both, and what lies between: filters, staleness limits, a full buffer.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from time import time_ns
from typing import Any, Final, NamedTuple, TypeGuard, TypeVar, cast

from opentelemetry.metrics import Meter
from opentelemetry.trace import SpanContext, TraceFlags, get_current_span

from otel_rl.semconv import names
from otel_rl.semconv.outcomes import Outcome
from otel_rl.semconv.spec import described
from otel_rl.version import __version__
from otel_rl.worker import served_policy, session
from otel_rl.worker.api.learning import (
    batch_figures,
    effective_sizes,
    outcome_word,
    record_end,
    repetition,
)
from otel_rl.worker.api.rollouts import rollout
from otel_rl.worker.api.weights import digest, signed, verify
from otel_rl.worker.drops import DropReason
from otel_rl.worker.step_context import current_step
from otel_rl.worker.tensors import NotANumber, as_step, hold, number

__all__ = [
    "digest",
    "inject",
    "link",
    "link_weights",
    "read",
    "rollout",
    "score",
    "signed",
    "stamp",
    "verify",
]

_KEY: Final = "otel_rl"
"""Key or attribute that holds the stamp of a sample."""

_MAX_LINKS: Final = 64
"""Per call. The SDK keeps 128 links of a span, and a person reads fewer."""

_MAX_SAMPLES: Final = 65_536
"""Per call; further samples are counted as dropped."""

_SCOPE: Final = "otel_rl.carrier"

_NS_PER_S: Final = 1_000_000_000

_STAMP: Final = re.compile(
    r"(?:00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2}))?"
    r"(?:;v=(-?\d{1,19}))?(?:;s=(-?\d{1,19}))?(?:;t=(\d{1,19}))?"
    r"(?:;r=(-?\d[\d.e+-]{0,30}|-?inf|nan))?(?:;n=(\d{1,19}))?"
    r"(?:;o=([a-z_]{1,24}))?(?:;g=([\w.-]{1,32}))?"
    r"(?:;[a-z]+=[^;]{0,64})*"  # parts of later versions
)

_SCORE: Final = re.compile(r";[rnog]=[^;]*")

_GROUP: Final = re.compile(r"[\w.-]{1,32}", re.ASCII)

_TEXT_KINDS: Final = "OSUTV"  # objects, bytes, text and records, as numpy has them

_Item = TypeVar("_Item")


class Origin(NamedTuple):
    """Content of a stamp; None for missing parts.

    Attributes:
        span: (trace id, span id, trace flags) of the span that generated the sample.
        version: The policy version that generated it.
        step: The training step in which it was generated.
        time_ns: Time of the stamp, since the Unix epoch.
        reward: Reward of the sample.
        length: Length of the sample, in tokens or actions.
        outcome: Outcome of the sample.
        group: Name of the group of samples that are compared with each other.
    """

    span: tuple[int, int, int] | None
    version: int | None
    step: int | None
    time_ns: int | None
    reward: float | None = None
    length: int | None = None
    outcome: Outcome | None = None
    group: str | None = None


_UNKNOWN: Final = Origin(None, None, None, None)


def stamp(*, policy_version: int | None = None, step: int | None = None) -> str:
    """Return the current span, policy version, step and time as one line of text. Never raises.

    Args:
        policy_version: Version of the policy that generates the sample, or of the weights that are
            sent; default that of the latest ``link_weights``. The current span gets it.
        step: The training step; default the caller's current one.
    """
    with session.GUARD:
        span = get_current_span()
        context = span.get_span_context()
        version, number = as_step(policy_version), as_step(_step(step))
        if version is not None:
            span.set_attribute(names.RL_POLICY_VERSION, version)
        elif (weights := served_policy.served()) is not None:
            version = weights.version
        return "".join(
            (
                f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
                if context.is_valid
                else "",
                "" if version is None else f";v={version}",
                "" if number is None else f";s={number}",
                f";t={time_ns()}",
            )
        )
    return ""


def score(
    item: _Item,
    *,
    reward: object = None,
    length: object = None,
    outcome: str | None = None,
    reason: str | None = None,
    environment: str | None = None,
    group: object = None,
    components: Mapping[str, object] | None = None,
    tokens: object = None,
) -> _Item:
    """Record what became of a sample, and add that to the sample's stamp. Never raises.

    Records ``rl.sample.reward`` and ``rl.sample.length`` of all samples, whether or not they are
    trained on. ``link`` records those of samples that are. Call ``score`` once per sample, and
    again only with an outcome that is known later, such as ``dropped``: each outcome counts.

    Args:
        item: A sample, stamped or not, or the text of a stamp.
        reward: A number, or a tensor of one element. A tensor on a device is waited for.
        length: Length of the sample, in tokens or actions.
        outcome: How the sample ended, a word of ``otel_rl.semconv.outcomes.Outcome``. A sample with
            a reward and no outcome counts as ``trained``. For a failure give no reward, or the
            reward with which the sample enters training: the sample then counts as poisoned.
        reason: Why the sample ended so, one of a few words: ``session_reset``, not a message.
        environment: Name of the sample's environment or task set.
        group: Id or number that names the samples of one prompt, which are compared with each
            other. ``link`` then records how many groups have no signal.
        components: Parts of the reward by name.
        tokens: Ids of the generated tokens, a sequence or an array of shape ``(n,)`` or ``(1, n)``,
            from which the length and the share that repeats follow. Ids on a device are waited for.

    Returns:
        The item; for a text, the longer text.
    """
    with session.GUARD:
        found = item if isinstance(item, str) else next(_stamps(item), None)
        known = None if found is None else read(found)
        text = stamp() if found is None or known is None else found.strip()
        known = known or _UNKNOWN
        points, ids = _reward(reward), _ids(tokens)
        size = as_step(len(ids) if length is None and ids is not None else length)
        told = outcome_word(outcome, "lineage.score")
        end = told or known.outcome or (None if points is None else Outcome.TRAINED)
        now = known._replace(
            reward=known.reward if points is None else points,
            length=known.length if size is None or size < 0 else size,
            outcome=end,
            group=known.group if group is None else _group(group),
        )
        text = _SCORE.sub("", text) + _scored(now)
        if isinstance(item, str):
            item = cast("_Item", text)
        else:
            _write(item, text, "score")
        if told is not None or known.outcome is None:
            _ended(now, known, told, reason=reason, environment=environment, parts=components or {})
        _produced(points, None if size is None or size < 0 else size, ids)
    return item


def _scored(origin: Origin) -> str:
    parts = (
        ("r", None if origin.reward is None else repr(origin.reward)),
        ("n", origin.length),
        ("o", origin.outcome),
        ("g", origin.group),
    )
    return "".join(f";{key}={value}" for key, value in parts if value is not None)


def _group(given: object) -> str:
    text = str(given)
    if _GROUP.fullmatch(text):
        return text
    return blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


def _ids(tokens: object) -> Sequence[object] | None:
    """Return ids in a sequence; None, and counted, for anything but a single sample."""
    ids = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    while _is_nested(ids) and len(ids) == 1:
        ids = ids[0]  # a batch of one
    if _is_nested(ids):
        session.GUARD.drop(
            DropReason.BAD_SAMPLE,
            f"lineage.score: tokens are those of one sample (got {len(ids)} rows).",
        )
        return None
    return ids if isinstance(ids, Sequence) else None


def _is_nested(ids: object) -> TypeGuard[Sequence[Any]]:
    return (
        isinstance(ids, Sequence)
        and bool(ids)
        and isinstance(ids[0], Sequence)
        and not isinstance(ids[0], str | bytes)
    )


def _ended(
    now: Origin,
    known: Origin,
    told: Outcome | None,
    *,
    reason: object,
    environment: object,
    parts: Mapping[str, object],
) -> None:
    """Record how a sample ended, if its end is known.

    Args:
        now: What is known of the sample now.
        known: What was known of the sample before.
        told: The outcome that the program gives.
        parts: Parts of the reward by name.
    """
    meter = _meter()
    if meter is None or now.outcome is None:
        return
    components = {name: value for name, of in parts.items() if (value := _reward(of)) is not None}
    record_end(
        meter,
        now.outcome,
        is_first=known.outcome is None,
        is_told=told is not None,
        reward=now.reward,
        reason=reason,
        environment=environment,
        components=components,
    )


def _reward(given: object) -> float | None:
    value = None if given is None else number(hold(given))
    if isinstance(value, NotANumber):
        session.GUARD.drop(
            DropReason.NOT_A_NUMBER, f"lineage.score: a reward is a {value.description}."
        )
        return None
    return None if value is None else float(value)


def inject(item: _Item, *, policy_version: int | None = None, step: int | None = None) -> _Item:
    """Write a ``stamp`` into a sample. Never raises.

    Args:
        item: A mutable mapping, which gets the key ``otel_rl``; or an object, which gets the
            attribute. An item that accepts neither stays unchanged and is counted: keep a ``stamp``
            beside it.
        policy_version: See ``stamp``.
        step: See ``stamp``.

    Returns:
        The item.
    """
    with session.GUARD:
        _write(item, stamp(policy_version=policy_version, step=step), "inject")
    return item


def _write(item: object, text: str, caller: str) -> None:
    try:
        if isinstance(item, Mapping):
            item[_KEY] = text  # type: ignore[index]  # or a TypeError
        else:
            setattr(item, _KEY, text)
    except (TypeError, AttributeError):
        session.GUARD.drop(
            DropReason.NO_STAMP,
            f"lineage.{caller}: a {type(item).__name__} accepts no stamp. Keep the result of "
            "lineage.stamp() beside it.",
        )


def link(
    items: object,
    *,
    policy_version: int | None = None,
    step: int | None = None,
    weights: object = None,
) -> None:
    """Link the current span to the spans that generated the samples, and measure the samples' age.

    Call it where the samples are used, within the span of the step or phase. Never raises. Of more
    than 64 different spans, 64 are linked: the latest 32, which the work may have waited for, and
    others evenly spaced over the rest; the span records the total.

    Records ``rl.sample.age.duration``, and ``.versions`` and ``.steps`` where both sides know them,
    each as mean, min, max, p50 and p99 over the samples; ``rl.policy.staleness`` of each sample
    whose version is known; and of samples with ``score``, mean, min, max and standard deviation of
    the reward as ``rl.reward.*`` and the mean length as ``rl.episode.length``. For samples whose
    ``score`` named a group, as far as the groups are complete in this call, it records the shares
    that teach nothing: ``rl.group.no_signal``, ``.all_right``, ``.all_wrong``,
    ``rl.sample.no_signal``.

    Args:
        items: Stamped samples, stamps, or any nesting of sequences and arrays of them.
        policy_version: The version that is trained now.
        step: The training step; default the caller's current one.
        weights: Importance weight of each sample, new over sampling policy, in the order of the
            samples: a sequence or an array of numbers. An array on a device is waited for. Recorded
            as ``rl.sample.effective_size``, overall and by the samples' age in versions.
    """
    with session.GUARD:
        number = as_step(_step(step))
        texts = list(islice(_stamps(items), _MAX_SAMPLES + 1))
        if len(texts) > _MAX_SAMPLES:
            session.GUARD.drop(
                DropReason.TOO_MANY_SAMPLES,
                f"lineage.link: more than {_MAX_SAMPLES} samples in one call; the rest is dropped.",
            )
            texts.pop()
        # Samples of one generation mostly share a span and a stamp.
        origins = [(origin, n) for text, n in Counter(texts).items() if (origin := read(text))]
        _link([origin for origin, _ in origins], sum(n for _, n in origins))
        version = as_step(policy_version)
        _measure(origins, version, number)
        if weights is not None:
            _measure_weights([read(text) for text in texts], weights, version, number)


def link_weights(weights: object, *, policy_version: int | None = None) -> None:
    """Link the current span, which received weights, to the span that sent them.

    Later spans of the phase ``generate``, in all threads, link to the current span. Call it within
    the span of ``weight_sync`` or ``weight_pull``, with the stamp of the weights. Never raises.

    Args:
        weights: A ``stamp``, or an object that has one.
        policy_version: Version of the weights; default that of the stamp.
    """
    with session.GUARD:
        span = get_current_span()
        origin = next((one for text in _stamps(weights) if (one := read(text))), None)
        version = as_step(policy_version)
        if origin is not None:
            if version is None:
                version = origin.version
            if origin.span is not None:
                span.add_link(_context(origin.span))
        if version is not None:
            span.set_attribute(names.RL_POLICY_VERSION, version)
        served_policy.serve(served_policy.ServedPolicy(span.get_span_context(), version))


def _step(given: int | None) -> int | None:
    return current_step() if given is None else given


def _stamps(items: object) -> Iterator[str]:
    """Yield the stamps of any container. Iterative, as a batch may be nested to any depth."""
    waiting: list[Iterator[object]] = [iter((items,))]
    while waiting:
        item = next(waiting[-1], waiting)
        if item is waiting:
            waiting.pop()
        elif isinstance(item, str):
            yield item
        elif isinstance(item, bytes):
            yield item.decode("ascii", "replace")
        elif isinstance(item, Mapping):
            waiting.append(iter((item[_KEY],) if _KEY in item else ()))
        elif hasattr(item, _KEY):
            waiting.append(iter((getattr(item, _KEY),)))
        elif hasattr(item, "tolist"):
            if _may_hold_text(item):
                waiting.append(iter((item.tolist(),)))
        elif isinstance(item, Iterable):
            waiting.append(iter(item))


def _may_hold_text(array: object) -> bool:
    """Return whether an array may hold stamps. A tensor's values are not read: that may block."""
    kind = getattr(getattr(array, "dtype", None), "kind", None)
    if isinstance(kind, str):
        return kind in _TEXT_KINDS
    return not hasattr(array, "device")  # torch has no tensors of text


def read(text: str) -> Origin | None:
    """Parse a ``stamp``; None if ``text`` is not one."""
    match = _STAMP.fullmatch(text.strip())
    if match is None or not match[0]:
        return None
    trace_id, span_id, flags, version, step, time, reward, length, end, group = match.groups()
    span = None
    if trace_id:
        place = int(trace_id, 16), int(span_id, 16), int(flags, 16)
        span = place if place[0] and place[1] else None
    version, step, time, length = map(_integer, (version, step, time, length))
    outcome = _OUTCOMES.get(end) if end else None  # of a later version
    return Origin(span, version, step, time, _real(reward), length, outcome, group)


_OUTCOMES: Final[Mapping[str, Outcome]] = {one.value: one for one in Outcome}


def _integer(written: str | None) -> int | None:
    return None if written is None else int(written)


def _real(written: str | None) -> float | None:
    try:
        return None if written is None else float(written)
    except ValueError:  # such as 1e-
        return None


def _link(origins: Iterable[Origin], samples: int) -> None:
    span = get_current_span()
    if not span.is_recording():
        return
    latest: dict[tuple[int, int, int], int] = {}
    for origin in origins:
        if origin.span is not None:
            latest[origin.span] = max(latest.get(origin.span, 0), origin.time_ns or 0)
    for place in _chosen(sorted(latest, key=lambda one: latest[one])):
        span.add_link(_context(place))
    span.set_attribute(names.RL_SAMPLE_COUNT, samples)
    span.set_attribute(names.RL_SAMPLE_ORIGINS, len(latest))


def _context(place: tuple[int, int, int]) -> SpanContext:
    trace_id, span_id, flags = place
    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))


def _chosen(spans: Sequence[_Item]) -> Iterable[_Item]:
    if len(spans) <= _MAX_LINKS:
        return spans
    half = _MAX_LINKS // 2
    others, latest = spans[:-half], spans[-half:]
    return [*(others[place * len(others) // half] for place in range(half)), *latest]


def _measure(origins: Sequence[tuple[Origin, int]], version: int | None, step: int | None) -> None:
    meter = _meter()
    if meter is None:
        return
    at_step: dict[str, str | int] = {} if step is None else {names.RL_LOOP_ITERATION: step}
    ages = _ages(origins, version, step)
    for name, values in ages.items():
        for statistic, value in _statistics(values):
            _set(meter, name, value, {names.RL_STATISTIC: statistic, **at_step})
    if stale := [age for age in ages.get(names.RL_SAMPLE_AGE_VERSIONS, ()) if age >= 0]:
        staleness = meter.create_histogram(*described(names.RL_POLICY_STALENESS))
        for age in stale:
            staleness.record(age, at_step)
    samples = [origin for origin, n in origins for _ in range(n)]
    if rewards := [one.reward for one in samples if one.reward is not None]:
        for name, value in _of_rewards(rewards):
            _set(meter, name, value, at_step)
    if lengths := [one.length for one in samples if one.length is not None]:
        _set(meter, names.RL_EPISODE_LENGTH, sum(lengths) / len(lengths), at_step)
    for name, value in batch_figures((one.group, one.reward, one.outcome) for one in samples):
        _set(meter, name, value, at_step)


def _measure_weights(
    origins: Sequence[Origin | None], weights: object, version: int | None, step: int | None
) -> None:
    meter = _meter()
    values = weights.tolist() if hasattr(weights, "tolist") else weights
    if meter is None or not isinstance(values, Sequence) or len(values) != len(origins):
        session.GUARD.drop(
            DropReason.NOT_A_NUMBER,
            "lineage.link: weights are a sequence with one number for each stamped sample.",
        )
        return
    lags = [
        None if one is None or one.version is None or version is None else version - one.version
        for one in origins
    ]
    at_step: dict[str, str | int] = {} if step is None else {names.RL_LOOP_ITERATION: step}
    for attributes, share in effective_sizes([*map(float, values)], lags):
        _set(meter, names.RL_SAMPLE_EFFECTIVE_SIZE, share, {**attributes, **at_step})


def _meter() -> Meter | None:
    current = session.running() or session.start_from_environment()
    return None if current is None else current.providers.meter.get_meter(_SCOPE, __version__)


def _set(meter: Meter, name: str, value: float, attributes: Mapping[str, str | int]) -> None:
    meter.create_gauge(*described(name)).set(value, attributes)


def _ages(
    origins: Sequence[tuple[Origin, int]], version: int | None, step: int | None
) -> Mapping[str, list[float]]:
    now_ns = time_ns()
    ages: defaultdict[str, list[float]] = defaultdict(list)
    for origin, n in origins:
        if origin.time_ns is not None:
            age_s = (now_ns - origin.time_ns) / _NS_PER_S
            ages[names.RL_SAMPLE_AGE_DURATION].extend([age_s] * n)
        if version is not None and origin.version is not None:
            ages[names.RL_SAMPLE_AGE_VERSIONS].extend([version - origin.version] * n)
        if step is not None and origin.step is not None:
            ages[names.RL_SAMPLE_AGE_STEPS].extend([step - origin.step] * n)
    return ages


def _produced(
    reward: float | None, length: int | None, tokens: Sequence[object] | None = None
) -> None:
    meter = _meter()
    if meter is None:
        return
    if reward is not None:
        meter.create_gauge(*described(names.RL_SAMPLE_REWARD)).set(reward)
    if length is not None:
        meter.create_histogram(*described(names.RL_SAMPLE_LENGTH)).record(length)
    if tokens is not None and (share := repetition(tokens)) is not None:
        meter.create_gauge(*described(names.RL_SAMPLE_REPETITION)).set(share)


def _of_rewards(rewards: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Yield name and value of each figure. NaN is data: one NaN makes all figures NaN."""
    mean = sum(rewards) / len(rewards)
    unknown = math.isnan(mean)
    yield names.RL_REWARD_MEAN, mean
    yield names.RL_REWARD_MIN, mean if unknown else min(rewards)
    yield names.RL_REWARD_MAX, mean if unknown else max(rewards)
    yield (
        names.RL_REWARD_STD,
        math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards)),
    )


def _statistics(values: list[float]) -> Iterator[tuple[str, float]]:
    values.sort()
    last = len(values) - 1
    yield "mean", sum(values) / len(values)
    yield "min", values[0]
    yield "max", values[-1]
    yield "p50", values[round(0.50 * last)]
    yield "p99", values[round(0.99 * last)]
