"""The number of experiments is bounded, however many are named at once."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from otel_rl.bridge.counters import Refusal
from otel_rl.bridge.receive.experiments import Experiments
from otel_rl.records import ExperimentKey


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def key(number: int) -> ExperimentKey:
    return ExperimentKey(f"experiment-{number}")


def test_a_new_experiment_is_taken_while_there_is_room_and_refused_by_name_after_that() -> None:
    experiments = Experiments(2)
    with experiments.request() as request:
        assert request.problem(key(1)) is None
        assert request.problem(key(2)) is None
        refused = request.problem(key(3))
        request.keep([key(1), key(2)])
    assert refused is not None
    assert refused[0] is Refusal.TOO_MANY_EXPERIMENTS
    assert "experiment-3" in refused[1]


def test_a_known_experiment_is_always_taken() -> None:
    experiments = Experiments(1, lambda: [key(1), key(2)])
    with experiments.request() as request:
        assert request.problem(key(1)) is None
        assert request.problem(key(2)) is None
        assert request.problem(key(3)) is not None


def test_what_was_named_but_not_kept_takes_no_room() -> None:
    experiments = Experiments(1)
    with experiments.request() as request:
        assert request.problem(key(1)) is None
    with experiments.request() as request:
        assert request.problem(key(2)) is None


def test_a_request_that_fails_gives_its_room_back() -> None:
    experiments = Experiments(1)
    try:
        with experiments.request() as request:
            assert request.problem(key(1)) is None
            raise OSError
    except OSError:
        pass
    with experiments.request() as request:
        assert request.problem(key(2)) is None


def test_trials_of_an_experiment_are_runs_and_count_each() -> None:
    experiments = Experiments(1)
    with experiments.request() as request:
        assert request.problem(ExperimentKey("x", "a")) is None
        assert request.problem(ExperimentKey("x", "b")) is not None


def test_an_experiment_that_is_used_no_longer_makes_room() -> None:
    in_use, clock = {key(1)}, Clock()
    experiments = Experiments(1, lambda: in_use, clock)
    with experiments.request() as request:
        assert request.problem(key(2)) is not None
    in_use.clear()
    clock.now_s = 1.0
    with experiments.request() as request:
        assert request.problem(key(2)) is None


def test_who_is_in_use_is_asked_once_a_second_however_many_are_refused() -> None:
    asked: list[float] = []
    clock = Clock()

    def in_use() -> list[ExperimentKey]:
        asked.append(clock.now_s)
        return []

    experiments = Experiments(0, in_use, clock)
    for clock.now_s in (0.1, 0.5, 1.0, 1.5, 2.0):
        with experiments.request() as request:
            assert all(request.problem(key(n)) for n in range(100))
    assert asked == [0.0, 1.0, 2.0]


def test_two_requests_with_the_same_new_experiment_both_come_in() -> None:
    kept: list[ExperimentKey] = []
    experiments = Experiments(1, lambda: kept)
    with experiments.request() as one, experiments.request() as other:
        assert one.problem(key(1)) is None
        assert other.problem(key(1)) is None
        one.keep([key(1)])
        kept.append(key(1))
    with experiments.request() as request:
        assert request.problem(key(1)) is None
        assert request.problem(key(2)) is not None


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=6), st.booleans()), max_size=12),
)
def test_never_more_are_kept_than_the_bound(
    bound: int, requests: list[tuple[list[int], bool]]
) -> None:
    kept: set[ExperimentKey] = set()
    experiments = Experiments(bound, lambda: kept)
    for numbers, is_durable in requests:
        with experiments.request() as request:
            taken = {key(n) for n in numbers if request.problem(key(n)) is None}
            if is_durable:
                kept |= taken
                request.keep(taken)
        assert len(kept) <= bound


def test_threads_together_keep_to_the_bound() -> None:
    kept: dict[ExperimentKey, None] = {}
    experiments = Experiments(10, lambda: list(kept))

    def send(first: int) -> None:
        for number in range(first, first + 100):
            with experiments.request() as request:
                if request.problem(key(number)) is None:
                    kept[key(number)] = None
                    request.keep([key(number)])

    threads = [threading.Thread(target=send, args=(50 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) == 10


def test_nobody_waits_while_the_journal_is_asked_for_room() -> None:
    answered: list[bool] = []

    def in_use() -> list[ExperimentKey]:
        if asked:
            other = threading.Thread(target=lambda: answered.append(experiments.knows(key(1))))
            other.start()
            other.join(60)
        asked.append(True)
        return [key(1)]

    asked: list[bool] = []
    times = iter([0.0, 2.0])
    experiments = Experiments(1, in_use, lambda: next(times))
    with experiments.request() as newcomers:
        assert newcomers.problem(key(2)) is not None
    assert answered == [True]
