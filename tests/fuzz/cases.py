"""One fuzzed request after another, from a seed."""

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from otel_rl.bridge.receive.signal_specs import SIGNALS
from otel_rl.signals import Signal
from tests.fuzz.corpus import Seed, otlp_json
from tests.fuzz.mutations import damaged_bytes, mutated_json, mutated_protobuf
from tests.fuzz.strange import strange_request

PROTOBUF, JSON = "application/x-protobuf", "application/json"


@dataclass(frozen=True, slots=True)
class Case:
    """A request as it is posted.

    Attributes:
        signal: Where to.
        media: Its ``Content-Type``.
        encoding: Its ``Content-Encoding``.
        body: As it goes over the wire.
        kind: How it was made.
    """

    signal: Signal
    media: str
    encoding: str
    body: bytes
    kind: str


def make_case(random: Random, corpus: Sequence[Seed]) -> Case:
    """The next request: mostly wrong in a few places, sometimes everywhere, sometimes nowhere."""
    seed = random.choices(corpus, [len(seed.protobuf) + 100 for seed in corpus])[0]
    media = random.choice((PROTOBUF, JSON))
    # Now and then a request is posted to the path, or in the encoding, of another.
    signal = seed.signal if random.random() < 0.97 else random.choice(list(Signal))
    kind, body = _body(random, seed, media, corpus)
    if random.random() < 0.03:
        media = random.choice((PROTOBUF, JSON))
    encoding, body = _encoded(random, body)
    return Case(signal, media, encoding, body, kind)


def _body(random: Random, seed: Seed, media: str, corpus: Sequence[Seed]) -> tuple[str, bytes]:
    sound = seed.protobuf if media == PROTOBUF else seed.json
    choice = random.random()
    if choice < 0.05:
        return "sound", sound
    if choice < 0.08:
        return "random", random.randbytes(random.randint(0, 300))
    if choice < (0.50 if media == PROTOBUF else 0.20):  # in JSON they take long to make
        strange = strange_request(random, seed.request)
        return "strange", strange.SerializeToString() if media == PROTOBUF else otlp_json(strange)
    if choice < 0.65:
        other = random.choice(corpus)
        spliced = other.protobuf if media == PROTOBUF else other.json
        return "damaged", damaged_bytes(random, sound, spliced)
    if media == PROTOBUF:
        descriptor = SIGNALS[seed.signal].request.DESCRIPTOR
        return "mutated", mutated_protobuf(random, seed.protobuf, descriptor)
    return "mutated", mutated_json(random, seed.json)


def _encoded(random: Random, body: bytes) -> tuple[str, bytes]:
    choice = random.random()
    if choice < 0.55:
        return "identity", body
    encoding = random.choice(("gzip", "gzip", "deflate"))
    compressed = gzip.compress(body, 1, mtime=0) if encoding == "gzip" else zlib.compress(body, 1)
    if choice < 0.90:
        return encoding, compressed
    if choice < 0.94:
        return encoding, damaged_bytes(random, compressed, body)
    if choice < 0.98:
        return random.choice(("gzip", "deflate")), body
    return "gzip", compressed * random.randint(2, 3)
