import numpy as np
import pytest

from otel_rl.demo.messages import Completions, Group
from otel_rl.demo.scheduling import ReplayBuffer


def group(version: int, name: str = "") -> Group:
    return Group(Completions(name, (), (), (), version), ())


@pytest.fixture
def buffer() -> ReplayBuffer:
    return ReplayBuffer(limit=4, max_staleness=2, rng=np.random.default_rng(0))


def test_a_full_buffer_evicts_its_oldest(buffer: ReplayBuffer) -> None:
    for number in range(6):
        buffer.write(group(0, str(number)))
    drawn = buffer.draw(4, policy_version=0)
    assert drawn is not None
    assert {each.completions.prompt for each in drawn} == {"2", "3", "4", "5"}
    assert buffer.evicted == {"capacity": 2, "stale": 0}


def test_a_stale_group_is_never_drawn(buffer: ReplayBuffer) -> None:
    for version in (0, 1, 2, 3):
        buffer.write(group(version))
    drawn = buffer.draw(3, policy_version=3)
    assert drawn is not None
    assert {each.completions.policy_version for each in drawn} == {1, 2, 3}
    assert buffer.evicted == {"capacity": 0, "stale": 1}


def test_a_group_is_drawn_once(buffer: ReplayBuffer) -> None:
    for number in range(4):
        buffer.write(group(0, str(number)))
    first, second = buffer.draw(2, policy_version=0), buffer.draw(2, policy_version=0)
    assert first is not None
    assert second is not None
    names = [each.completions.prompt for each in (*first, *second)]
    assert sorted(names) == ["0", "1", "2", "3"]
    assert len(buffer) == 0


def test_too_few_groups_stay_where_they_are(buffer: ReplayBuffer) -> None:
    buffer.write(group(0))
    assert buffer.draw(2, policy_version=0) is None
    assert len(buffer) == 1
