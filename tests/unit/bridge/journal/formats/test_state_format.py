"""The format of the state: what is damaged or forged is refused, and takes no memory."""

import random
import sqlite3
import tracemalloc
import zlib
from array import array
from collections.abc import Callable
from contextlib import closing

import msgspec
import pytest
from msgspec.structs import replace

from otel_rl.bridge.journal.formats import state_format as wire
from otel_rl.bridge.journal.sqlite import JOURNAL_FILE
from otel_rl.bridge.otlp.decode import decode
from otel_rl.bridge.rows.aligner import Aligner, AlignSettings
from otel_rl.bridge.rows.open_run.run_state import RunState
from tests.journals.small_run import HALF, LIVE, RANKS, Life, S, start_ns, step
from tests.kept import to_bytes

MUTATIONS = 1_500


@pytest.fixture(scope="module")
def body(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The state of a run with something of every kind in it."""
    directory = tmp_path_factory.mktemp("journal")
    life = Life(directory)
    for number in range(HALF):
        for rank in range(RANKS):
            life.take(*step(LIVE, rank, number), now_ns=start_ns(LIVE) + (number + 1) * S)
    life.journal.close()
    with closing(sqlite3.connect(directory / JOURNAL_FILE)) as connection:
        (found,) = connection.execute("SELECT body FROM states").fetchone()
    assert isinstance(found, bytes)
    return found


def mutated(body: bytes, chance: random.Random) -> bytes:
    changed = bytearray(body)
    for _ in range(chance.choice([1, 1, 2, 5])):
        place = chance.randrange(len(changed))
        match chance.choice(["change", "change", "remove", "add"]):
            case "change":
                changed[place] = chance.choice(
                    [0, 1, 0x7F, 0x80, 0xC0, 0xCB, 0xFF, chance.randrange(256)]
                )
            case "remove":
                del changed[place]
            case _:
                changed.insert(place, chance.randrange(256))
    return bytes(changed)


def in_the_state(body: bytes, chance: random.Random) -> wire.Run:
    return wire.decode(mutated(body, chance), wire.Run)


def in_the_identities(body: bytes, chance: random.Random) -> wire.Run:
    run = wire.decode(body, wire.Run)
    table = run.aligner.table
    changed = wire.compress(mutated(wire.decompress(table.identities), chance))
    return replace(run, aligner=replace(run.aligner, table=replace(table, identities=changed)))


@pytest.mark.parametrize("mutation", [in_the_state, in_the_identities])
def test_a_state_with_wrong_bytes_is_refused_or_one_to_go_on_from(
    body: bytes, mutation: Callable[[bytes, random.Random], wire.Run]
) -> None:
    """None comes to a failure in a later round, which would be tried again for ever."""
    chance, now_ns = random.Random(0), start_ns(LIVE) + HALF * S  # not for secrets
    batches = [decode(step(LIVE, rank, HALF)[0]) for rank in range(RANKS)]
    refused = 0
    for _ in range(MUTATIONS):
        try:
            with wire.refusing():
                kept = mutation(body, chance).aligner
                state = RunState.from_wire(kept, AlignSettings(per_worker=True))
        except wire.StateRefused:
            refused += 1
            continue
        aligner = Aligner(state=state)
        aligner.go_on(now_ns)
        for batch in batches:
            aligner.add(batch, received_ns=now_ns)
        aligner.close(now_ns)
        aligner.close(now_ns + 100 * S, everything=True)
        to_bytes(aligner)
    assert MUTATIONS / 2 < refused < MUTATIONS


def bomb(size: int) -> bytes:
    return zlib.compress(bytes(size))


def bomb_of_arrays(size: int) -> bytes:
    return zlib.compress(b"\xdc\xff\xff" * (size // 3))


@pytest.mark.parametrize("made", [bomb, bomb_of_arrays])
@pytest.mark.parametrize(
    "read", [wire.decompress, lambda body: list(wire.decompress_each(body))], ids=["one", "parts"]
)
def test_what_is_much_larger_than_it_is_stored_is_refused_before_it_is_there(
    made: Callable[[int], bytes], read: Callable[[bytes], object]
) -> None:
    body = made(256 << 20)
    tracemalloc.start()
    with pytest.raises(wire.StateRefused, match="more than"):
        read(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff",
        b"\x94\x01\xdd\xff\xff\xff\xff",
        b"\x94\x01\xdf\xff\xff\xff\xff",
        b"\x94\x01\xc6\xff\xff\xff\xff",
        b"\x94\x01\xdb\xff\xff\xff\xff",
    ],
)
def test_a_length_that_nothing_follows_takes_no_memory(body: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(wire.StateRefused):
        wire.decode(body, wire.Run)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("size", [0, 1, 16 << 20, (16 << 20) + 1, 40 << 20])
def test_what_compresses_well_can_be_read_again(size: int) -> None:
    assert wire.decompress(wire.compress(bytes(size))) == bytes(size)


@pytest.mark.parametrize("rest", [b"x", zlib.compress(b"another")])
def test_nothing_may_follow_a_compressed_state(rest: bytes) -> None:
    with pytest.raises(wire.StateRefused, match="behind its end"):
        wire.decompress(wire.compress(b"state") + rest)


def test_a_state_that_breaks_off_is_refused() -> None:
    with pytest.raises(wire.StateRefused, match="breaks off"):
        wire.decompress(wire.compress(b"state")[:-1])


@pytest.mark.parametrize("version", [0, 2, 2**63])
def test_another_version_is_refused_by_its_number(version: int) -> None:
    with pytest.raises(wire.StateRefused, match=f"version {version}"):
        wire.decode(msgspec.msgpack.encode([version, [], [], None]), wire.Run)


@pytest.mark.parametrize(
    "odd", [b"bytes", {1: "a number"}, [b"within"], msgspec.msgpack.Ext(1, b"")]
)
def test_a_value_that_json_does_not_have_is_refused(odd: object) -> None:
    with pytest.raises(wire.StateRefused):
        wire.value(odd)


def test_texts_that_are_no_unicode_do_not_keep_a_state_from_being_written() -> None:
    """No sender can send them, but a run whose state cannot be written would stand still."""
    part = wire.SpanPart(wire.VERSION, ["\ud800 host", "sound"], [])
    assert wire.decode(wire.encode(part), wire.SpanPart).texts == ["? host", "sound"]


def test_a_field_that_this_version_does_not_know_is_refused() -> None:
    with pytest.raises(wire.StateRefused):
        wire.decode(msgspec.msgpack.encode([1, [], [], "more"]), wire.SpanPart)


def test_the_state_says_nothing_of_classes(body: bytes) -> None:
    assert b"otel_rl." not in body
    assert b"Aligner" not in body


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_columns_that_are_packed_together_are_packed_each(
    byteorder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty one is nothing, and none of them is changed."""
    monkeypatch.setattr("sys.byteorder", byteorder)
    columns = [array("q", some) for some in ([1, -2], [], [1 << 62])]
    before = [column[:] for column in columns]
    assert wire.packed_together(columns) == b"".join(map(wire.packed, columns))
    assert columns == before
