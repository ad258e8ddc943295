"""Names that MLflow itself accepts, different for different keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_metric_name

from otel_rl.bridge.delivery.mlflow import mlflow_name


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("eval/pass@1", "eval/pass-at-1"),
        ("maj@8 of 16", "maj-at-8 of 16"),
        ("trainer/loss", "trainer/loss"),
        ("trainer/Train Loss", "trainer/Train Loss"),
        ("trainer/损失", "trainer/损失"),
    ],
)
def test_names_stay_readable(key: str, name: str) -> None:
    assert mlflow_name(key) == name


@pytest.mark.parametrize("key", ["..hidden", "../loss", "..@"])
def test_a_name_that_reads_as_a_path_is_one_no_more(key: str) -> None:
    _validate_metric_name(mlflow_name(key))  # type: ignore[no-untyped-call]  # MLflow's


@pytest.mark.parametrize("key", ["eval/pass-at-1", "a@b-at-c", "pass@50%", "@" * 200])
def test_a_name_that_could_be_that_of_another_key_has_a_digest(key: str) -> None:
    assert mlflow_name(key)[-9] == "_"


keys = st.text(alphabet="ab@-t_/. %é", min_size=1, max_size=12)


@given(keys, keys)
def test_mlflow_accepts_each_name_and_two_keys_never_share_one(one: str, other: str) -> None:
    for key in (one, other):
        _validate_metric_name(mlflow_name(key))  # type: ignore[no-untyped-call]  # MLflow's
    assert (mlflow_name(one) == mlflow_name(other)) == (one == other)
