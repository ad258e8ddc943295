"""A row whose keys are known is selected as if each of its values were looked at."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from otel_rl.bridge.delivery.selection import KeySelection
from otel_rl.bridge.keys import KeyNames
from otel_rl.records import GPUS, HOSTS, KeySpec, Row, Table
from otel_rl.semconv.spec import Tier
from tests.support.slow import examples

NS_PER_MINUTE = 60_000_000_000
DEVICES = (f"{GPUS}/", f"{HOSTS}/")

keys = st.sampled_from(["a", "b", "c", "d", "gpu/0/power", "host/n/memory"])


@st.composite
def catalogues(draw: st.DrawFn) -> list[KeySpec]:
    return [
        KeySpec(
            key,
            tier=draw(st.sampled_from(Tier)),
            worker=draw(st.sampled_from(["", "", "0"])),
            own_name=draw(st.sampled_from(["", "own", f"own/{key}"])),
            own_scale=draw(st.sampled_from([1.0, 1.0, 100.0, -1.0])),
        )
        for key in draw(st.lists(keys, unique=True))
    ]


values = st.one_of(st.floats(allow_nan=False), st.integers(-5, 5))


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    """Rows of a few shapes, some of them with texts and tables."""
    shapes = draw(st.lists(st.lists(keys, unique=True), min_size=1, max_size=3))
    return [
        Row(
            number,
            number,
            draw(st.integers(0, 3)) * NS_PER_MINUTE,
            {key: draw(values) for key in draw(st.sampled_from(shapes))},
            tables={key: Table(("x",), ((1,),)) for key in draw(st.sampled_from([[], [], ["a"]]))},
            labels=dict.fromkeys(draw(st.sampled_from([[], [], ["b"]])), "text"),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


@given(
    catalogues(),
    rows(),
    st.sampled_from(Tier),
    st.sampled_from(KeyNames),
    st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_rows_of_known_keys_are_selected_value_by_value(
    catalogue: list[KeySpec],
    sent: list[Row],
    detail: Tier,
    names: KeyNames,
    per_worker: bool,
) -> None:
    by_shape, by_value = (
        kind(
            detail,
            names,
            per_worker=per_worker,
            keys=lambda: catalogue,
        )
        for kind in (KeySelection, _ByValue)
    )
    for row in sent:
        (found,), (expected,) = by_shape.rows([row]), by_value.rows([row])
        assert found == expected
        assert [*found.values] == [*expected.values]


class _ByValue(KeySelection):
    """Looks at each value of each row."""

    def _row(self, row: Row) -> Row:
        values: dict[str, float] = {}
        devices: dict[str, float] = {}
        for key, value in row.values.items():
            for name, divisor in self._sent[key]:
                values[name] = value if divisor == 1 else value / divisor
            if key not in values and key.startswith(DEVICES):
                devices[key] = value
        return replace(
            row,
            values=values,
            tables=self._of(row.tables),
            labels=self._of(row.labels),
            devices=devices,
        )
