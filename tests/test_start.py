"""What only shows or checks is there before torch: start-up, imports, and declarations read with stand-ins."""

import json
import logging
import sys
from pathlib import Path

import pytest

import flray
from flray import registry
from flray.cli.main import app
from tests.helpers import cases, python, small

HEAVY = ("torch", "ray", "mlflow", "pandas", "sklearn", "scipy", "matplotlib", "torchvision")
LISTED = "algorithms, algorithms fedskc, augmentations, datasets, datasets digits-sklearn, metrics"
LISTED += ", models, models lenet, partitions"
QUICK = ("--help", "--version", "run --help", "data list")
QUICK += tuple(f"list {kind}" for kind in LISTED.split(", "))
FEDAVG = "model: linear, algorithm: fedavg"
MISTAKES = {
    "yaml": "",
    "key": f"{FEDAVG}, rouds: 3}}",
    "name": "model: linear, algorithm: fedvag}",
    "option": "model: linear, algorithm: {name: fedprox, mu: -1}}",
    "model": "model: {name: lenet, norm: bach}, algorithm: fedavg}",
    "partition": f"{FEDAVG}, partition: {{name: dirichlet, alpha: 0}}}}",
}


def loaded_by(commands: list[list[str]], cwd: Path) -> list[tuple[int, list[str]]]:
    """Return for each command of one process its exit code, and which heavy packages are there after it."""
    code = (
        "import contextlib, io, json, sys\nfrom flray.cli.main import invoke\n"
        f"for command in {commands!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        code = invoke(command)\n"
        f"    print(json.dumps([code, sorted({{*{HEAVY!r}}} & set(sys.modules))]))"
    )
    return [tuple(json.loads(line)) for line in python(code, cwd=cwd).stdout.splitlines()]


def test_what_only_shows_imports_nothing_heavy(tmp_path: Path) -> None:
    found = loaded_by([command.split() for command in QUICK], tmp_path)
    assert dict(zip(QUICK, found, strict=True)) == {command: (0, []) for command in QUICK}


def test_a_sweep_begins_without_figures_tracking_and_the_compiler() -> None:
    later = {"matplotlib", "mlflow", "sqlalchemy", "torch._dynamo", "sklearn", "jinja2"}
    code = f"import sys, flray.tuning.sweep, flray.runs.loop; print(sorted({later} & set(sys.modules)))"
    assert python(code).stdout == "[]\n"


def test_a_report_needs_none_of_what_trains(tmp_path: Path) -> None:
    kept = Path(__file__).parents[1] / "search_spaces" / "tuned.results.csv"
    ((code, loaded),) = loaded_by([["report", str(kept), "--to", "tables"]], tmp_path)
    assert code == 0 and not {"torch", "ray", "mlflow", "torchvision"} & set(loaded)


def test_a_mistake_in_a_file_is_told_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    for name, text in MISTAKES.items():
        (tmp_path / f"{name}.yaml").write_text(f"experiment: {{data: digits-sklearn, {text}")
    commands = [[command, f"{name}.yaml"] for name in MISTAKES for command in ("run", "tune")]
    found = loaded_by(commands, tmp_path)
    assert [one for one in zip(commands, found, strict=True) if one[1] != (2, [])] == []


@pytest.mark.parametrize("kind", sorted(registry.ALL))
def test_declarations_are_those_of_the_imported_components(kind: str) -> None:
    """What needs torch, NumPy or another package that computes is no declaration."""
    entries = registry.ALL[kind]
    registry.run_all(entries.package)
    entries.get(entries.names()[0])  # imports
    assert set(entries._outlines) == set(entries.names()) - set(entries.added())
    for name, read in entries._outlines.items():
        real = entries.get(name)
        assert real.__module__ == read.__module__.removeprefix(registry.PREFIX)
        assert real.__doc__ == read.__doc__
        found = getattr(read, "Params", None) or registry.signature_model(read, name)
        expected = entries.params(name)
        assert found.model_json_schema() == expected.model_json_schema(), name
        presets = ([vars(p) for p in getattr(one, "presets", ())] for one in (found, expected))
        assert next(presets) == next(presets), name
        if kind == "algorithms":
            assert read.adds_up() == real.adds_up(), name
            for attribute in ("shared", "needs", "views"):
                both = [getattr(one, attribute) for one in (read, real)]
                assert both[0] == both[1] or all(isinstance(one, property) for one in both)


@cases(
    "typed, expected",
    """[tu, [tune]], [tune fedskc/table, [fedskc/table1, fedskc/table5]], [run mine, [mine.yaml]],
    [run mine.yaml algorithm=fedpr, [algorithm=fedproto, algorithm=fedprox]],
    [data get digits5, [digits5, digits5-local]], [list al, [algorithms]]""",
)
def test_a_shell_completes_commands_data_sets_methods_and_suites(
    typed: str, expected: list[str], tmp_cwd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.yaml").write_text("")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setenv("_FLRAY_COMPLETE", "complete_zsh")
        patch.setenv("_TYPER_COMPLETE_ARGS", f"flray {typed}")
        app(prog_name="flray")
    shown = capsys.readouterr().out
    assert all(word in shown for word in expected), shown


def test_what_a_run_says_is_logged_too(tmp_cwd: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flray")
    flray.run({"experiment": small(algorithm="fedbn")})
    assert any("no batch norm" in message for message in caplog.messages)


def test_a_module_that_was_imported_can_be_called_as_the_function() -> None:
    code = "import flray, flray.run, flray.tune; print(callable(flray.run), callable(flray.tune))"
    assert python(code).stdout.split() == ["True", "True"]


def test_a_read_only_array_becomes_a_tensor_without_a_copy_and_without_a_warning() -> None:
    """An array of Ray's object store; torch warns once per process, and pytest keeps warnings to itself."""
    code = (
        "import numpy; from flray import devices; array = numpy.arange(3)\n"
        "array.flags.writeable = False; tensor = devices.from_numpy(array)\n"
        "print(tensor.sum().item(), tensor.data_ptr() == array.ctypes.data)"
    )
    done = python(code)
    assert (done.stdout, done.stderr) == ("3 True\n", "")


def test_modules_that_are_run_with_stand_ins_leave_the_others_alone() -> None:
    """Tables of imported modules, such as the archives and their decoders, keep what is real."""
    for entries in registry.ALL.values():
        entries.names()
        registry.run_all(entries.package)
    found = []
    for name, module in list(sys.modules.items()):
        if name.startswith("flray.") and not name.startswith(registry.PREFIX):
            for table in vars(module).values():
                held = table.values() if isinstance(table, dict) else (table,)
                owners = [getattr(one, "__module__", "") for one in held]
                found += [name for one in owners if str(one).startswith(registry.PREFIX)]
    assert found == []
