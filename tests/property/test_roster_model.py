"""The law of the roster: in the end, what it says is what happened, whenever the bridge died.

Workers come, die, say goodbye and are replaced; the bridge dies as well, loses what it had not
committed, stays away, and reads again what it had acknowledged.
"""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_rl.bridge.rows.run import Run
from otel_rl.bridge.rows.settings import AlignSettings
from otel_rl.records import Decoded, Departure, Export, Worker
from tests.support.kept import from_bytes, to_bytes

S = 1_000_000_000
T0 = 1_700_000_000 * S

COUNT = 3

places = st.integers(0, COUNT - 1)
events = st.lists(
    st.tuples(st.sampled_from(["start", "kill", "goodbye", "commit"]), places)
    | st.tuples(st.just("crash"), st.sampled_from([0, 3, 40, 4000]))
    | st.tuples(st.just("pass"), st.integers(1, 40)),
    max_size=25,
)


class World:
    """One role of three places, a bridge, and what really happened."""

    def __init__(self) -> None:
        self.aligner = Run(AlignSettings())
        self.committed = to_bytes(self.aligner)
        self.acknowledged: list[tuple[int, Decoded]] = []
        self.now_ns = T0
        self.living: dict[int, Worker] = {}
        self.gone: set[int] = set()
        self.started = self.killed = 0

    def start(self, place: int) -> None:
        if place not in self.living:
            self.started += 1
            self.living[place] = Worker("generator", str(self.started), place, COUNT)
            self.gone.discard(place)
            self.export(place)

    def kill(self, place: int) -> None:
        self.killed += self.living.pop(place, None) is not None

    def goodbye(self, place: int) -> None:
        worker = self.living.pop(place, None)
        if worker is not None:
            self.gone.add(place)
            departure = Departure(worker, self.now_ns, failed=False)
            self.send(Decoded((), [Export(worker, 0)], departures=[departure]))

    def export(self, place: int) -> None:
        self.send(Decoded((), [Export(self.living[place], self.now_ns)]))

    def send(self, decoded: Decoded) -> None:
        self.acknowledged.append((self.now_ns, decoded))
        self.aligner.add(decoded, received_ns=self.now_ns)

    def commit(self, _place: int) -> None:
        self.aligner.close(self.now_ns)
        self.committed, self.acknowledged = to_bytes(self.aligner), []

    def crash(self, away_s: int) -> None:
        self.now_ns += away_s * S
        self.aligner = from_bytes(self.committed, self.aligner)
        self.aligner.go_on(self.now_ns)
        for received_ns, decoded in self.acknowledged:
            self.aligner.add(decoded, received_ns=received_ns)

    def pass_(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_ns += S
            for place in self.living:
                self.export(place)
            self.aligner.close(self.now_ns)


@given(events)
@example([("start", 0), ("goodbye", 0)])
@settings(deadline=None)  # it simulates minutes
def test_what_it_says_is_what_happened(happened: list[tuple[str, int]]) -> None:
    world = World()
    for name, value in happened:
        getattr(world, {"pass": "pass_"}.get(name, name))(value)
    world.pass_(400)
    if not world.started:
        return
    found = world.aligner.roles["generator"]
    assert found.alive == len(world.living)
    assert found.failures == world.killed
    assert found.expected == COUNT - len(world.gone)
