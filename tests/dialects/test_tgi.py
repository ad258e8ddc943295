"""Names, kinds and labels of Text Generation Inference are those of its source."""

import re
from collections import defaultdict
from collections.abc import Mapping

import pytest

from otel_rl.semconv.aliases import dialect
from tests.dialects.emitters.tgi_router import METRICS
from tests.lab.frameworks.sources import SOURCES

_CALL = re.compile(r'metrics::(counter|gauge|histogram)!\(\s*"(\w+)"((?:,\s*"\w+" => "\w+")*)')
_LABEL = re.compile(r'"(\w+)" => "(\w+)"')


@pytest.fixture(scope="module")
def emitted() -> Mapping[str, set[tuple[str, str]]]:
    """Kind and labels of each call, by the name of the metric."""
    source = SOURCES["tgi"]
    if not source.is_built():
        pytest.skip(source.not_verified())
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for file in source.files:
        for kind, name, labels in _CALL.findall((source.path / file).read_text()):
            text = ",".join(f'{key}="{value}"' for key, value in _LABEL.findall(labels))
            found[name].add((kind, text))
    return found


@pytest.mark.parametrize("name", METRICS)
def test_the_emitter_emits_what_the_router_emits(
    name: str, emitted: Mapping[str, set[tuple[str, str]]]
) -> None:
    kind, each = METRICS[name]
    labels = each if isinstance(each, dict) else [""]
    assert {(kind, one) for one in labels} <= emitted[name]


def test_every_rule_is_of_a_metric(emitted: Mapping[str, set[tuple[str, str]]]) -> None:
    table = dialect("tgi")
    (prefix,) = table.prefixes
    names = [name.removeprefix(prefix) for name in emitted]
    assert len(names) >= len(METRICS)
    for rule in table.rules:
        assert [name for name in names if re.fullmatch(rule.match, name)], rule.match
