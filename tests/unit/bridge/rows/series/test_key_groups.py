"""Keys of a metric beyond its bound."""

from otel_rl.bridge.rows.series.key_groups import GroupTable
from otel_rl.semconv.spec import Reduction


def test_seconds_and_milliseconds_do_not_fold_into_one_key() -> None:
    table, keys = GroupTable(), list[str]()
    for request, unit in enumerate(["s", "s", "ms", "s", "ms"]):
        attributes = (("request", str(request)),)
        identity = table.identify("actor", "wait", attributes, Reduction.MEAN, unit, most=1)
        keys.append(table.group(identity, unit=unit).key)
    folded, in_ms = "actor/wait/overflow", "actor/wait/overflow/ms"
    assert keys == ["actor/wait/0", folded, in_ms, folded, in_ms]
