from otel_rl.demo import DemoSettings
from otel_rl.demo.scheduling import Admission


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def admitted(admission: Admission, clock: Clock, seconds: int) -> int:
    """Prompts that come in while nobody has enough, of ten that ask each second."""
    count = 0
    for _ in range(seconds * 10):
        clock.now_s += 0.1
        count += admission.admits(buffered=0, unfinished=0)
    return count


def test_prompts_come_until_the_inventory_is_full() -> None:
    admission = Admission(DemoSettings(inventory_groups=50))
    assert admission.admits(buffered=30, unfinished=19)
    assert not admission.admits(buffered=30, unfinished=20)


def test_throttled_prompts_come_so_many_times_slower_than_before() -> None:
    clock = Clock()
    admission = Admission(DemoSettings(), clock)
    before = admitted(admission, clock, seconds=50)
    admission.throttle(5)
    assert before / 5 - 2 <= admitted(admission, clock, seconds=50) <= before / 5 + 2


def test_a_flood_fills_every_queue_however_full_the_buffer_is() -> None:
    settings = DemoSettings(generators=3, queue_limit=8)
    admission = Admission(settings)
    admission.flood()
    assert admission.admits(buffered=settings.buffer_groups, unfinished=23)
    assert not admission.admits(buffered=0, unfinished=24)
