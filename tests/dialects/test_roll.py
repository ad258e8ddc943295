"""Spans of ROLL have the names of its source."""

import re
import tomllib
from pathlib import Path

import pytest

from otel_rl.semconv import aliases
from otel_rl.semconv.foreign import meaning_of, step_keys
from tests.lab.frameworks.sources import SOURCES

_SPAN = re.compile(r'start_as_current_span\(\s*"([^"]+)"')
_TRACED = re.compile(r"@register\([^)]*trace=True[^)]*\)\s*(?:async )?def (\w+)")

TABLE = Path(aliases.__file__).parent / "dialects" / "roll.toml"


def test_a_step_of_the_pipeline_is_a_step() -> None:
    assert meaning_of("pipeline_step").is_step
    assert "global_step" in step_keys()
    assert meaning_of("worker.train_step").phase == "train"
    assert meaning_of("model_update").phase == "weight_sync"


def test_every_rule_is_of_a_span() -> None:
    source = SOURCES["roll-spans"]
    if not source.is_built():
        pytest.skip(source.not_verified())
    texts = [(source.path / file).read_text() for file in source.files]
    names = {name for text in texts for name in _SPAN.findall(text)}
    names |= {f"worker.{name}" for text in texts for name in _TRACED.findall(text)}
    spans = tomllib.loads(TABLE.read_text())["spans"]
    for match in [*spans["steps"], *(rule["match"] for rule in spans["phases"])]:
        assert [name for name in names if re.fullmatch(match, name)], match
