"""A broken registry is refused with the file, the name and what is wrong with it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.semconv import definition, generate, rules

MANIFEST = "schema_url: https://example.invalid/schemas/1.0.0\nstability: development\n"
SOUND = """\
file_format: definition/2
attributes:
  - key: rl.color
    type: string
    stability: development
    brief: What it looks like.
    examples: [red]
    annotations: {otel_rl: {placement: measurement}}
  - key: rl.owner
    type: string
    stability: development
    brief: Whose it is.
    examples: [me]
    annotations: {otel_rl: {placement: resource}}
metrics:
  - name: rl.paint.usage
    instrument: counter
    unit: "{drop}"
    stability: development
    brief: Paint used.
    attributes: [{ref: rl.color, requirement_level: required}]
    annotations: {otel_rl: {group: trainer, reduce: sum}}
  - name: rl.paint.utilization
    instrument: gauge
    unit: "1"
    stability: development
    brief: Share of the pot in use.
    annotations: {otel_rl: {group: trainer, reduce: mean, statistics: [max]}}
events:
  - name: rl.paint.end
    stability: development
    brief: The pot is empty.
    attributes: [{ref: rl.color}, {ref: error.type}]
  - name: rl.paint.start
    stability: development
    brief: The pot is full.
"""

# (what is done, text taken out, text put in its place, file and name, what is said of it)
CORRUPTIONS = [
    ("no reduction", ", reduce: sum", "", "paint.yaml: rl.paint.usage", "reduce is missing"),
    (
        "unknown reduction",
        "reduce: sum",
        "reduce: median",
        "rl.paint.usage",
        "reduce must be one of mean, sum, min, max, std, last, not 'median'",
    ),
    ("no unit", '    unit: "{drop}"\n', "", "rl.paint.usage", "unit is missing"),
    ("bad unit", '"{drop}"', "drops", "rl.paint.usage", "unit must be one of 1, By"),
    ("milliseconds", '"{drop}"', "ms", "rl.paint.usage", "not 'ms'"),
    ("unit in the name", "rl.paint.usage", "rl.paint.usage_ms", "rl.paint.usage_ms", "hold a unit"),
    ("total in the name", "rl.paint.usage", "rl.paint.total", "rl.paint.total", "or a total"),
    ("capitals", "rl.paint.usage", "rl.paintUsage", "rl.paintUsage", "lowercase words"),
    ("no namespace", "rl.paint.usage", "paint", "paint.yaml: paint", "in a namespace"),
    ("foreign namespace", "rl.paint.usage", "db.usage", "db.usage", "must begin with rl."),
    ("duration not in seconds", "rl.paint.usage", "rl.paint.time", "rl.paint.time", "in seconds"),
    ("sum of ratios", "reduce: mean", "reduce: sum", "rl.paint.utilization", "ratios have no sum"),
    (
        "quantile of a gauge",
        "statistics: [max]",
        "statistics: [p99]",
        "rl.paint.utilization",
        "only a histogram has quantiles (p99)",
    ),
    (
        "statistic that repeats the reduction",
        "statistics: [max]",
        "statistics: [mean]",
        "rl.paint.utilization",
        "repeats the reduction",
    ),
    (
        "unknown statistic",
        "statistics: [max]",
        "statistics: [mode]",
        "rl.paint.utilization",
        "unknown statistic 'mode'",
    ),
    (
        "unknown group",
        "group: trainer, reduce: sum",
        "group: x, reduce: sum",
        "usage",
        "group must",
    ),
    ("unknown instrument", "instrument: gauge", "instrument: dial", "utilization", "not 'dial'"),
    (
        "unknown key",
        "    brief: Paint used.",
        "    breif: x\n    brief: Y.",
        "usage",
        "key 'breif'",
    ),
    (
        "unknown key in the annotation",
        "reduce: sum",
        "reduce: sum, per_wroker: true",
        "rl.paint.usage: annotations.otel_rl",
        "unknown key 'per_wroker'",
    ),
    (
        "flag that is no flag",
        "reduce: sum",
        "reduce: sum, derived: maybe",
        "rl.paint.usage",
        "derived must be true or false, not 'maybe'",
    ),
    ("key that stands twice", 'unit: "1"', 'unit: "1"\n    unit: s', "paint.yaml", "stands twice"),
    (
        "metric that stands twice",
        "rl.paint.utilization",
        "rl.paint.usage",
        "paint.yaml: rl.paint.usage",
        "metric is defined twice, first in paint.yaml",
    ),
    (
        "attribute that stands twice",
        "key: rl.owner",
        "key: rl.color",
        "paint.yaml: rl.color",
        "attribute is defined twice",
    ),
    (
        "attribute that is a namespace",
        "key: rl.owner",
        "key: rl.color.name",
        "rl.color",
        "attribute is also the namespace of rl.color.name",
    ),
    ("undefined attribute", "ref: rl.color", "ref: rl.taste", "rl.paint.usage", "is not defined"),
    (
        "resource attribute on a point",
        "ref: rl.color",
        "ref: rl.owner",
        "rl.paint.usage",
        "rl.owner stands on the resource, not on a point",
    ),
    (
        "undefined attribute of an event",
        "{ref: error.type}",
        "{ref: error.taste}",
        "rl.paint.end",
        "error.taste is not defined",
    ),
    (
        "resource attribute on an event",
        "[{ref: rl.color}, {ref",
        "[{ref: rl.owner}, {ref",
        "rl.paint.end",
        "rl.owner stands on the resource, not on an event",
    ),
    ("foreign event", "rl.paint.end", "paint.end", "paint.end", "event must begin with rl."),
    (
        "event that stands twice",
        "rl.paint.start",
        "rl.paint.end",
        "paint.yaml: rl.paint.end",
        "event is defined twice",
    ),
    ("event that is no sentence", "is empty.", "is empty", "rl.paint.end", "be a sentence"),
    ("brief that is no sentence", "Paint used.", "Paint", "rl.paint.usage", "be a sentence"),
    ("long brief", "Paint used.", "P" * 90 + ".", "rl.paint.usage", "characters long, over"),
    ("no examples", "    examples: [red]\n", "", "rl.color", "needs examples"),
    ("no placement", "{placement: measurement}", "{}", "rl.color", "placement is missing"),
    ("wrong format", "definition/2", "definition/1", "paint.yaml", "file_format must be one of"),
    ("a list for a mapping", SOUND, "- a\n- b\n", "paint.yaml", "must be a mapping"),
    ("no YAML", "file_format:", "file_format: [", "paint.yaml", "is not YAML"),
]


@pytest.fixture
def problems_of(tmp_path: Path) -> Callable[[str], list[str]]:
    """What reading and checking a registry with this one file complains about."""

    def find(text: str) -> list[str]:
        (tmp_path / "manifest.yaml").write_text(MANIFEST)
        (tmp_path / "paint.yaml").write_text(text)
        try:
            rules.check(definition.read(tmp_path))
        except definition.RegistryError as error:
            return error.problems
        return []

    return find


def test_a_sound_registry_has_no_problems(problems_of: Callable[[str], list[str]]) -> None:
    assert problems_of(SOUND) == []


@pytest.mark.parametrize(
    ("what", "taken", "put", "where", "said"), CORRUPTIONS, ids=[row[0] for row in CORRUPTIONS]
)
def test_a_broken_registry_is_refused(
    problems_of: Callable[[str], list[str]], what: str, taken: str, put: str, where: str, said: str
) -> None:
    assert taken in SOUND
    problems = problems_of(SOUND.replace(taken, put, 1))
    assert any(
        problem.startswith("paint.yaml: ") and where in problem and said in problem
        for problem in problems
    ), problems


def test_all_problems_are_told_at_once(problems_of: Callable[[str], list[str]]) -> None:
    broken = SOUND.replace(", reduce: sum", "").replace('"1"', '"1"\n    color: red')
    assert len(problems_of(broken)) == 2


def test_a_directory_without_a_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "paint.yaml").write_text(SOUND)
    with pytest.raises(definition.RegistryError, match=r"manifest\.yaml: is missing"):
        definition.read(tmp_path)


def test_a_refinement_must_be_of_an_imported_metric(
    problems_of: Callable[[str], list[str]],
) -> None:
    refinement = """
metric_refinements:
  - id: otel_rl.hw.power
    ref: hw.power
    brief: Electric power.
    annotations: {otel_rl: {group: machine, instrument: gauge, unit: W, reduce: mean}}
"""
    assert problems_of(SOUND + refinement) == [
        "paint.yaml: hw.power: is refined here but not imported"
    ]
    assert problems_of(SOUND + refinement + "imports: {metrics: [hw.*]}\n") == []


def test_the_command_names_every_problem_and_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.yaml").write_text(MANIFEST)
    (tmp_path / "paint.yaml").write_text(SOUND.replace(", reduce: sum", ""))
    assert generate.main(["--registry", str(tmp_path), "--root", str(tmp_path)]) == 1
    assert "paint.yaml: rl.paint.usage" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.yaml", "paint.yaml"]
