import secrets
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from otel_rl.demo.faults import FaultInjection
from otel_rl.demo.messages import Address, Done, Hello, NewerThan, Stop, Weights
from otel_rl.demo.processes.weight_store import WeightStore
from otel_rl.demo.rpc import KEY_VARIABLE, ControlServer, Remote, connect, listen, serve


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, secrets.token_hex(16))


@pytest.fixture
def store() -> Address:
    """A weight store behind a real port."""
    listener, address = listen()
    serve(listener, WeightStore(FaultInjection()).answer, name="test")
    return address


def test_the_newest_weights_are_what_a_generator_pulls(store: Address) -> None:
    trainer, generator = Remote(store), Remote(store)
    assert generator.call(NewerThan(0)) is None
    assert trainer.call(Weights(1, b"one")) == Done()
    assert trainer.call(Weights(2, b"two")) == Done()
    assert generator.call(NewerThan(0)) == Weights(2, b"two")
    assert generator.call(NewerThan(2)) is None


def test_a_stranger_at_the_door_does_not_close_it(store: Address) -> None:
    with socket.create_connection(store) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert Remote(store).call(NewerThan(0)) is None


def test_calls_of_many_threads_get_their_own_answers(store: Address) -> None:
    remote = Remote(store)
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda n: remote.call(Weights(n, b"") if n % 2 else NewerThan(99)), range(100))
        )
    assert answers == [Done() if n % 2 else None for n in range(100)]


def heard(switchboard: ControlServer, count: int) -> list[tuple[tuple[str, int], object]]:
    """The next messages, however many rounds they take."""
    found: list[tuple[tuple[str, int], object]] = []
    for _ in range(1000):
        found += switchboard.receive(timeout_s=0.02)
        if len(found) >= count:
            break
    return found


def test_a_member_is_known_by_its_first_word() -> None:
    switchboard = ControlServer()
    with connect(("127.0.0.1", switchboard.port)) as member:
        hello = Hello("generator", 1, None)
        member.send(hello)
        member.send("more")
        assert heard(switchboard, 2) == [(("generator", 1), hello), (("generator", 1), "more")]
        switchboard.send(("generator", 1), Stop())
        assert member.recv() == Stop()


def test_a_word_to_a_dead_member_goes_into_the_void() -> None:
    switchboard = ControlServer()
    with connect(("127.0.0.1", switchboard.port)) as member:
        member.send(Hello("generator", 1, None))
        heard(switchboard, 1)
    for _ in range(3):
        switchboard.send(("generator", 1), Stop())
        heard(switchboard, 0)


def test_a_restarted_member_takes_the_place_of_its_predecessor() -> None:
    switchboard = ControlServer()
    door = ("127.0.0.1", switchboard.port)
    with connect(door) as old:
        old.send(Hello("generator", 1, None))
        heard(switchboard, 1)
        with connect(door) as new:
            new.send(Hello("generator", 1, None))
            heard(switchboard, 1)
            old.close()
            heard(switchboard, 0)
            switchboard.send(("generator", 1), Stop())
            assert new.recv() == Stop()
