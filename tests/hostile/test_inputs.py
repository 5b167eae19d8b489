"""Bad files, values, plug-ins, addresses and command lines: one line, exit code 2, nothing left behind.

One of the files in a process of its own, as a person meets it; all of them with FLRAY_HOSTILE_ALL (scripts/hostile)."""

import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from flray import registry
from flray.config.loader import load
from flray.errors import FlrayError
from tests.hostile import inputs, values
from tests.hostile.asking import asked, started

ALONE = [
    (kind, name)
    for kind, some in inputs.ALL.items()
    for name, (_, typed) in some.items()
    if "\0" not in "".join(typed) and (name == "lines" or os.environ.get("FLRAY_HOSTILE_ALL"))
]


@pytest.mark.parametrize("kind", inputs.ALL)
def test_one_line_exit_code_two_and_nothing_left(kind: str, tmp_cwd: Path) -> None:
    answers = {}
    for name, (write, typed) in inputs.ALL[kind].items():
        write()
        if said := asked(typed):
            answers[name] = said
    assert not answers, "\n".join(f"{name}: {said}" for name, said in answers.items())


@pytest.mark.parametrize(("kind", "name"), ALONE)
def test_in_a_process_of_its_own(kind: str, name: str, tmp_cwd: Path) -> None:
    write, typed = inputs.ALL[kind][name]
    write()
    assert started(typed) == ""


@pytest.mark.parametrize("command", ["flray run", "flray.tune"])
def test_the_usage_names_the_command_as_it_was_typed(command: str) -> None:
    words = [sys.executable, "-m", *command.split()]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
    usage = f"usage: python -m {command} --help"
    assert ended.returncode == 2
    assert ended.stderr == f"flray: Missing argument 'FILE.yaml'. ({usage})\n"


ASKED = 150
"""Values that go by way of a file and the command line; all of them go through `flray.config.loader.load`."""


def answer(case: values.Case) -> str:
    """Return what is wrong with how a bad value is refused, empty if nothing is."""
    try:
        load(values.with_value(*case))
    except FlrayError as error:
        return "" if str(error).isprintable() else f"no single line: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def wrong(cases: list[values.Case]) -> list[str]:
    """Return a line for each case that is not refused as it should."""
    return [
        f"{'.'.join(path)}={value!r:.60}: {said}"
        for path, value in cases
        if (said := answer((path, value)))
    ]


def test_every_bad_value_of_every_setting_is_refused_in_one_line() -> None:
    cases = list(values.of_settings())
    assert len(cases) > 2500
    assert wrong(cases) == []


def test_bad_values_of_the_components_options_are_refused_in_one_line() -> None:
    cases = list(values.of_components())
    assert len(cases) > 9000
    assert wrong(random.Random(0).sample(cases, 1500)) == []


def test_bad_values_in_a_file_are_one_line_exit_code_two_and_nothing_left(tmp_cwd: Path) -> None:
    cases = random.Random(1).sample([*values.of_settings(), *values.of_components()], ASKED)
    answers = {}
    for path, value in cases:
        Path("x.yaml").write_text(
            yaml.safe_dump(values.with_value(path, value), allow_unicode=True)
        )
        if said := asked(["run", "x.yaml"]):
            answers[f"{'.'.join(path)}={value!r:.60}"] = said
    assert not answers, "\n".join(f"{name}: {said}" for name, said in answers.items())


@pytest.mark.parametrize(
    "kind", sorted({*registry.ALL} - {"callbacks", "metrics", "samplers", "tasks"})
)
def test_no_option_of_any_component_is_infinite(kind: str) -> None:
    asked = 0
    for name in registry.ALL[kind].names():
        params = registry.ALL[kind].params(name)
        for option, field in params.model_fields.items():
            if "float" not in str(field.annotation):
                continue
            asked += 1
            for value in (math.inf, -math.inf, math.nan):
                with pytest.raises(ValidationError) as caught:
                    params.model_validate({option: value})
                assert option in {error["loc"][0] for error in caught.value.errors()}, name
    assert asked
