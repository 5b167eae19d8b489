"""Whatever YAML can say: the loader returns a configuration, or one line per mistake."""

import math
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flray.config.experiment import Config
from flray.config.loader import load, parse_override
from flray.config.shapes import copy_plain
from flray.config.yaml_files import dump, parse
from flray.errors import ConfigErrors, FlrayError
from tests.hostile.values import places, with_value

WORDS = ["iid", "fedavg", "fedprox", "lenet", "digits-sklearn", "auto", "ray", "1e-3", "name"]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(WORDS)
)
NAMES = ["name", "preset", "lr", "local", "experiment", "sweep", "grid", "uniform", "mu"]
KEYS = st.text(max_size=6) | st.sampled_from(NAMES)
CONTENT = st.recursive(
    LEAVES,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=3),
    max_leaves=8,
)
PLACES = [path for path, _ in places()]
QUICK = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def well_said(source: Any, *overrides: Any) -> bool:
    """Load, and tell whether that gives a configuration or a refusal of one line per mistake."""
    try:
        return isinstance(load(source, overrides), Config)
    except ConfigErrors as error:
        return len(str(error).split("\n")) == len(error.errors)
    except FlrayError as error:
        return "\n" not in str(error)


@QUICK
@given(st.dictionaries(KEYS, CONTENT, max_size=4))
def test_any_content_is_a_configuration_or_a_line_per_mistake(content: dict[str, Any]) -> None:
    assert well_said(content)


@QUICK
@given(st.sampled_from(PLACES), CONTENT)
def test_any_value_at_any_place_is_taken_or_refused_and_so_as_an_override(
    path: tuple[str, ...], value: Any
) -> None:
    assert well_said(with_value(path, value))
    assert well_said(with_value(("experiment", "rounds"), 1), (".".join(path), value))


@QUICK
@given(st.text(max_size=40))
def test_any_text_is_an_override_or_refused_in_a_line(text: str) -> None:
    try:
        parse_override(text)
    except FlrayError as error:
        assert "\n" not in str(error)


@QUICK
@given(st.text(alphabet="ab:-[]{},&*!?|>'\"#% \n\t0.", max_size=40))
def test_any_text_is_plain_yaml_or_refused_in_a_line(text: str) -> None:
    try:
        content = parse(text)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert yaml.safe_load(yaml.safe_dump(content)) is not None or content is None


@QUICK
@given(CONTENT)
def test_what_yaml_wrote_is_read_as_it_was(content: Any) -> None:
    try:
        value = copy_plain(content)
    except FlrayError:
        return
    try:
        again = parse(dump(value))
    except ValueError:
        return  # a character that YAML cannot have
    assert repr(again) == repr(value)  # with types, order and nan


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2001-12-14", "2001-12-14"),
        ("1_000", 1000),
        ("0x1f", 31),
        ("yes", True),
        ("~", None),
        ("1e-3", "1e-3"),
        ("1.0e-3", 0.001),
        (".inf", math.inf),
        ("[1, a: 2]", [1, {"a": 2}]),
        ("{<<: {a: 1}, b: 2}", {"a": 1, "b": 2}),
        ("- &a {x: 1}\n- &b {<<: *a, x: 2}\n- {<<: *b, x: 3}", [{"x": 1}, {"x": 2}, {"x": 3}]),
    ],
)
def test_plain_values_are_read_as_yaml_means_them_and_dates_as_text(text: str, value: Any) -> None:
    """Only a setting that is a number takes an exponent without a point, which YAML takes for text."""
    assert parse(text) == value
    local = with_value(("experiment", "local"), {"lr": "1e-3"})
    assert load(local).experiment.local.lr == 0.001
