"""Names reach MLflow in a form that it takes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flray.tracking.names import clean_name, metric_name


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("global/common/accuracy", "global/common/accuracy"),
        ("time: a.b-c d_e", "time: a.b-c d_e"),
        ("/loss//x/./../y/", "loss/x/y"),
        ("worst 10 %", "worst 10 _"),
        ("accuracy@5\n", "accuracy_5_"),
    ],
)
def test_clean_name(name: str, cleaned: str) -> None:
    assert clean_name(name) == cleaned


def test_metric_name_keeps_a_clients_slash_inside_its_level() -> None:
    assert metric_name("personal", "local", "accuracy") == "personal/local/accuracy"
    assert metric_name("personal", "local", "accuracy", client="art/1") == "personal/local/accuracy/client/art_1"


def test_long_names_stay_different() -> None:
    one, other = clean_name("x" * 300 + "a"), clean_name("x" * 300 + "b")
    assert len(one) == len(other) == 250
    assert one != other


def test_a_name_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="name"):
        clean_name("/./")


@settings(deadline=None)  # the first call imports mlflow
@given(st.text(min_size=1, max_size=300))
def test_mlflows_own_check_takes_every_cleaned_name(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    try:
        cleaned = clean_name(name)
    except ValueError:
        return
    _validate_metric_name(cleaned)
    assert len(cleaned) <= 250
    assert clean_name(cleaned) == cleaned
