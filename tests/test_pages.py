"""README and the pages under docs/ work when pasted: files are written, commands run, settings and links are right."""

import functools
import re
import shlex
import shutil
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib
import nbformat
import numpy as np
import pandas as pd
import pytest
import typer
from PIL import Image

import flray
from flray import functional, registry
from flray.cli.main import UsageError, app, invoke
from flray.config import loader, suites, yaml_files
from flray.config.experiment import RESUMABLE_SETTINGS, RESUMABLE_SWEEP_SETTINGS
from flray.data.sources.cache import data_root
from flray.errors import FlrayError
from tests.helpers import ended
from tests.pages import BLOCKS, FILES, PAGES, README, ROOT, Block
from tests.test_layers import module_name

SMALL = ("rounds=1", "tracking.uri=null")
OTHER_PAGES = "CONTRIBUTING.md", "SECURITY.md"
IN_A_SENTENCE = re.compile(r"`(flray\s[^`]+)`")
LINK = re.compile(r"""(?:\]\(|src=")([^)"#\s]+)(?:#[^)\s]*)?[)"]""")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def small(command: list[str]) -> list[str]:
    """Return a command as it is run here: one round of few samples, and of a sweep one draw and one seed."""
    if command[0] == "run":
        return [*command, *SMALL, "subset=100", "resources.executor=inline"]
    if command[0] == "tune":
        few = "sweep.samples=1", "sweep.seeds=[0]", "sweep.concurrency=1"
        return [*command, *SMALL, *few, "resources.executor=inline"]
    if command[0] == "resume":
        return [re.sub(r"^rounds=\d+$", "rounds=2", word) for word in command]
    return command


def offline(text: str) -> str:
    """Return a text with the digits that need no download, where the others are not there."""
    there = any(data_root().glob("digits5-local*"))
    return text if there else text.replace("digits5-local", "digits-sklearn")


def run_block(block: Block, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a block's commands one after another in the current folder."""
    for words in block.commands:
        command, _, into = (offline("\0".join(words))).partition("\0>\0")
        program, *arguments = command.split("\0")
        assert program == "flray", f"{name_of(block.page)}: {program} cannot be run here"
        capsys.readouterr()
        code = invoke(small(arguments))
        captured = capsys.readouterr()
        assert code == 0, f"{' '.join(words)}\n{captured.out[-2000:]}{captured.err}"
        if into:
            Path(into).write_text(captured.out)


def write_own_data(folder: Path) -> None:
    """Write tables with a column of hospitals, and a set of Hugging Face's with one of writers."""
    import datasets

    generator = np.random.default_rng(0)
    n = np.arange(60)
    wards, ill = [f"H{i % 3}" for i in n], ["yes" if i % 4 else "no" for i in n]
    patients = pd.DataFrame({"age": 7 * n % 60, "hospital": wards, "ill": ill})
    patients.to_csv(folder / "patients.csv", index=False)
    stays = {"age": 20 + n % 60, "pressure": 100 + n % 37, "days": 1 + n * 7 % 9}
    stays |= {"cough": n % 2, "fever": n % 3 // 2, "hospital": wards}
    pd.DataFrame(stays).to_csv(folder / "stays.csv", index=False)
    digits = [
        {"glyph": Image.fromarray(pixels), "digit": number % 2, "writer": f"w{number % 3}"}
        for number, pixels in enumerate(generator.integers(0, 255, (24, 32, 32), dtype=np.uint8))
    ]
    whole, word = datasets.Value("int64"), datasets.Value("string")
    features = datasets.Features(glyph=datasets.Image(), digit=whole, writer=word)
    made = datasets.Dataset.from_list(digits, features=features)
    made.to_parquet(folder / "my_digits" / "train.parquet")


RUNNABLE = [block for block in BLOCKS if block.language == "bash" and not block.not_run]
SWEEPING = [block for block in RUNNABLE if any(words[1] == "tune" for words in block.commands)]
QUICK = sorted({block.page for block in RUNNABLE if block not in SWEEPING})
PYTHON = [block for block in BLOCKS if block.language == "python" and not block.not_run]
SCRIPTS = [block for block in PYTHON if not block.file]


@pytest.fixture
def folder(tmp_cwd: Path) -> Path:
    """The pages' files, a few photos and the kept results, in a fresh current folder."""
    for name, text in FILES.items():
        (tmp_cwd / name).write_text(re.sub(r"samples: \d{3,}", "samples: 100", offline(text)))
    for label, name in enumerate(("cats", "dogs", "birds")):
        (tmp_cwd / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.full((20, 24, 3), 60 * label + number, dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_cwd / "photos" / name / f"{number}.png")
    write_own_data(tmp_cwd)
    for path in (ROOT / "search_spaces").rglob("*.results.csv"):
        target = tmp_cwd / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    return tmp_cwd


def test_what_is_to_be_pasted_is_found() -> None:
    assert set(FILES) >= {"demo.yaml", "my_data.py", "my_network.py", "my_method.py", "mine.yaml"}
    assert len([words for block in RUNNABLE for words in block.commands]) >= 20
    named = [block.file for block in BLOCKS if block.file]
    assert len(named) == len(set(named)), "two blocks are the same file"
    assert {block.language for block in BLOCKS} <= {"bash", "yaml", "python", "toml", "text"}


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("page", QUICK, ids=name_of)
def test_a_page_s_commands(folder: Path, capsys: pytest.CaptureFixture[str], page: Path) -> None:
    for block in RUNNABLE:
        if block.page == page and block not in SWEEPING:
            run_block(block, capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures", "ray_here")
@pytest.mark.parametrize("block", SWEEPING, ids=lambda block: name_of(block.page))
def test_a_page_s_sweeps(folder: Path, capsys: pytest.CaptureFixture[str], block: Block) -> None:
    run_block(block, capsys)


@pytest.mark.slow
@pytest.mark.usefixtures("folder", "ray_here")
def test_ones_own_files_reach_the_actors(capsys: pytest.CaptureFixture[str]) -> None:
    digests = set()
    for executor in ("ray", "inline"):
        settings = ["rounds=2", "tracking.uri=null", f"resources.executor={executor}"]
        settings += ["resources.actors=1"] * (executor == "ray")
        assert invoke(["run", "mine.yaml", *settings]) == 0
        digests.add(re.findall(r"model SHA-256: (\w+)", capsys.readouterr().out)[0])
    assert len(digests) == 1


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("block", SCRIPTS, ids=lambda block: name_of(block.page))
def test_a_piece_of_python(folder: Path, block: Block) -> None:
    text = (folder / "demo.yaml").read_text()
    own = "  resources: {executor: inline}\n  tracking: {uri: null}\n"
    (folder / "demo.yaml").write_text(text + own)
    names: dict[str, object] = {}
    exec(compile(block.text, name_of(block.page), "exec"), names)
    assert len(names["result"].history) == 5  # type: ignore[attr-defined]


def commands_that_no_test_runs() -> list[list[str]]:
    """Return the command lines in sentences, in blocks that are not run, and below help texts."""
    texts = [
        page.read_text(encoding="utf-8") for page in (*PAGES, *(ROOT / n for n in OTHER_PAGES))
    ]
    lines = [" ".join(line.split()) for text in texts for line in IN_A_SENTENCE.findall(text)]
    commands = typer.main.get_command(app).commands.values()  # type: ignore[attr-defined]
    lines += [command.epilog.removeprefix("Example: ") for command in commands if command.epilog]
    typed = {tuple(shlex.split(line)) for line in lines}
    shown = [words for block in BLOCKS if block.not_run for words in block.commands]
    typed |= {tuple(words) for words in shown if words[0] == "flray"}
    return [list(words) for words in sorted(typed)]


def typed_wrong(words: list[str]) -> str:
    """Return why a command line that is shown cannot be typed; empty if it can."""
    command, rest = typer.main.get_command(app), words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]  # type: ignore[attr-defined]
    try:
        _, arguments, _ = command.make_parser(command.context_class(command)).parse_args(rest)
        if arguments and hasattr(command, "commands"):
            return f"no command {arguments[0]}"
        if command.name in ("run", "tune") and arguments and not arguments[0].isupper():
            file, *settings = arguments
            config = loader.load(ROOT / file if (ROOT / file).is_file() else file, settings)
            if command.name == "run":
                loader.check_single(config, file)
    except (UsageError, FlrayError) as error:
        return str(error)
    return ""


def test_the_commands_that_are_shown_can_be_typed(folder: Path) -> None:
    commands = commands_that_no_test_runs()
    assert len(commands) > 50
    problems = {" ".join(words): typed_wrong(words) for words in commands}
    assert {words: problem for words, problem in problems.items() if problem} == {}


def test_links_lead_to_files() -> None:
    for page in (*PAGES, *(ROOT / name for name in OTHER_PAGES)):
        for link in LINK.findall(page.read_text(encoding="utf-8")):
            assert ":" in link or (page.parent / link).exists(), (page, link)


def test_the_commands_with_json_are_named() -> None:
    text = (ROOT / "docs" / "guide" / "start.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"With `--json` (.*?) is JSON", text, re.DOTALL)
    commands: dict[str, Any] = dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    commands |= {f"data {name}": one for name, one in commands.pop("data").commands.items()}
    able = {name for name, one in commands.items() if any("--json" in p.opts for p in one.params)}
    named = {" ".join(name.split()) for name in re.findall(r"`([^`]+)`", listed)}
    assert {name for name in named if not name.startswith("--")} == able


@pytest.mark.parametrize("page", ["faults", "troubleshooting"])
def test_the_settings_that_a_resume_may_change_are_named(page: str) -> None:
    text = (ROOT / "docs" / "guide" / f"{page}.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"`resources` \(not [^)]*\)(.*?)[.|]\s", text, re.DOTALL)
    named = set(re.findall(r"`(\w+)`", listed)) | {"resources"}
    of_sweeps = {path.removeprefix("sweep.") for path in RESUMABLE_SWEEP_SETTINGS}
    assert named == {*RESUMABLE_SETTINGS, *of_sweeps}


def test_readme_is_short_and_shows_fedprox_as_it_is() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 180
    shown = FILES["fedprox.py"].removeprefix("# fedprox.py\n")
    assert shown == (ROOT / "flray/algorithms/fedprox.py").read_text(encoding="utf-8")


def test_readmes_table_is_the_kept_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = "search_spaces/tuned.results.csv"
    assert invoke(["report", kept, "--reference", "local", "--to", "."]) == 0
    report = Path("tuned.results.md").read_text(encoding="utf-8")
    rows = re.findall(r"\| (?:\*\*)?(\d\d\.\d\d ± \d\.\d\d)(?:\*\*)? \|", README.read_text())
    assert len(rows) == 5 and all(row in report for row in rows)


def indexed(built: Path) -> dict[str, Counter[str]]:
    """Return what Sphinx's own index of the pages holds, by kind."""
    packed = (built / "objects.inv").read_bytes().split(b"\n", 4)[4]
    names: dict[str, Counter[str]] = {}
    for line in zlib.decompress(packed).decode().splitlines():
        name, kind = line.rsplit(" ", 4)[:2]
        names.setdefault(kind, Counter())[name] += 1
    return names


def public_modules() -> set[str]:
    names = {module_name(path) for path in Path(flray.__file__).parent.rglob("*.py")}
    return {name for name in names if not name.rpartition(".")[2].startswith("_")}


@pytest.mark.slow
def test_the_site_has_all_modules_functions_components_settings_and_texts(tmp_path: Path) -> None:
    built, build = tmp_path / "html", ROOT / "scripts" / "site" / "build.py"
    ended(str(build), str(built), "basic")  # a theme that costs no time
    names = indexed(built)
    public = names["py:function"] | names["py:class"]
    assert set(names["py:module"]) == public_modules()
    assert {f"flray.functional.{name}" for name in functional.__all__} <= set(public)
    for kind, entries in registry.ALL.items():
        pages = built / "reference" / kind
        for name in set(entries.names()) - set(entries.added()):  # without those of other tests
            item = entries.get(name)
            assert f"{entries.kind}-{name}" in names["std:label"]
            assert not pages.is_dir() or (pages / f"{name}.html").is_file()
            # some are made by a function, such as the sets of folders
            made = "<locals>" in item.__qualname__
            assert made or f"{item.__module__}.{item.__qualname__}" in public
    settings = (built / "reference" / "settings.html").read_text()
    shown = "local.lr_decay", "faults.round_timeout", "shift.long_tail", "sweep.seeds"
    assert [path for path in shown if f">{path}<" not in settings] == []
    commands = (built / "reference" / "commands.html").read_text()
    assert "flray data show" in commands and "--smoke" in commands
    texts = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb")]
    wanted = {str(path.relative_to(ROOT).with_suffix("")) for path in texts}
    wanted |= {f"reference/suites/{name}" for name in suites.files(yaml_files.folder() / "papers")}
    assert [path for path in sorted(wanted) if not (built / f"{path}.html").is_file()] == []


NOTEBOOKS = ROOT / "docs" / "notebooks"


def cells(name: str) -> list[Any]:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def run_cells(name: str) -> dict[str, Any]:
    matplotlib.use("agg")
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells(name), 1):
        exec(compile(cell.source, f"{name}.ipynb, cell {number}", "exec"), names)
    return names


@pytest.mark.parametrize("name", sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")))
def test_it_was_stored_after_a_run(name: str) -> None:
    assert [cell.execution_count for cell in cells(name)] == list(range(1, len(cells(name)) + 1))
    outputs = [output for cell in cells(name) for output in cell.outputs]
    assert outputs and all(output.output_type != "error" for output in outputs)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures", "tmp_cwd")
def test_notebooks_of_a_run_and_of_an_own_method() -> None:
    names = run_cells("start")
    assert len(names["fedbn"].history) == names["experiment"]["rounds"]
    names = run_cells("own_method")
    assert names["whole"] == names["fedavg"] != names["half"].sha256


@pytest.mark.slow
def test_sweep(tmp_cwd: Path, ray_here: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    few = "rounds=1", "sweep.concurrency=1", "resources.executor=inline"
    monkeypatch.setattr(flray, "tune", functools.partial(flray.tune, overrides=few))
    monkeypatch.setattr("flray.drawing.canvas.render", lambda *_: b"<svg >")
    result = run_cells("sweep")["result"]
    assert set(result.summary["seeds"]) == {3} and len(result.conclusions) >= 1
