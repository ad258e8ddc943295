import pytest
from pydantic import ValidationError

from otel_rl.bridge.receive.limits import ReceiveLimits


def test_unknown_setting_is_an_error() -> None:
    with pytest.raises(ValidationError, match="max_bodybytes"):
        ReceiveLimits.model_validate({"max_bodybytes": 1})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ReceiveLimits().max_buckets = 1  # type: ignore[misc]
