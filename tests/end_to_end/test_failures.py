"""A client that raises, hangs or kills its process, in a block too; a server that dies; a user's components on Ray."""

import inspect
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from flray.algorithms import Algorithm
from flray.config.loader import load
from flray.federation import FederationSpec
from flray.federation.building import build_spec
from flray.federation.federation import Federation, inline_federation
from flray.federation.ray_backend.nodes import ship_user_modules
from flray.runs import runner
from tests.end_to_end.pool import Pools, dies_once, inline_digest, kill_an_actor, pids, world_of
from tests.helpers import INLINE, Said, Settings, built, inline, printed, told, written
from tests.messages import refused

BROKEN = '''
import os
import signal
import time

from flray import register_algorithm
from flray.algorithms import Algorithm
from flray.algorithms.local import Local

@register_algorithm("breaks")
class Breaks(Algorithm):
    """Breaks at client 2 in round 2."""

    def loss(self, client, batch):
        if client.id == 2 and client.round == 1:
            raise ValueError("this batch is not to my taste")
        return super().loss(client, batch)

@register_algorithm("hangs")
class Hangs(Local):
    """Does not answer at client 1 in round 2, nor at client 2 when it is measured after round 3."""

    def loss(self, client, batch):
        if client.id == 1 and client.round == 1:
            time.sleep(600)
        return super().loss(client, batch)

    def predictor(self, client, view):
        if client.id == 2 and client.round == 3:
            time.sleep(600)
        return super().predictor(client, view)

@register_algorithm("crashes")
class Crashes(Algorithm):
    """Takes its process down at client 0, every time."""

    def loss(self, client, batch):
        if client.id == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(client, batch)

@register_algorithm("mute")
class Mute(Algorithm):
    """Raises at every client from round 2 on."""

    def loss(self, client, batch):
        if client.round > 0:
            raise ValueError("not a word")
        return super().loss(client, batch)
'''

SKIPPING = {"resources": {"executor": "inline"}, "faults": {"on_client_error": "skip"}}
TIMEOUT = 12.0  # seconds for a round; tasks take a hundredth of it
SILENT = f"no answer within {TIMEOUT:g} s"


def broken(tmp_cwd: Path, digits: Settings, **changes: Any) -> str:
    (tmp_cwd / "broken.py").write_text(BROKEN)
    return written({**digits, "plugins": ["broken.py"], **changes})


def test_the_first_line_says_who_when_what_and_where(tmp_cwd: Path, digits: Settings) -> None:
    """On an actor, of a trial: tests/tuning/test_sweep.py; one that dies: below, test_troubleshooting.py."""
    lines = told(1, "run", broken(tmp_cwd, digits, algorithm="breaks", **INLINE)).splitlines()
    text = "this batch is not to my taste"
    line = BROKEN.splitlines().index(f'            raise ValueError("{text}")') + 1
    place = f"{tmp_cwd / 'broken.py'}:{line}"
    assert lines[0] == f"client 2 (rotated), round 2, train: ValueError: {text} at {place}"
    assert any(text.startswith("Traceback") for text in lines[1:])


def test_a_failing_client_is_left_out_and_reported(tmp_cwd: Path, digits: Settings) -> None:
    file = broken(tmp_cwd, digits, algorithm="breaks", **SKIPPING)
    assert "left out: client 2 (rotated), round 2, train: ValueError" in printed("run", file)
    history = runner.resume(tmp_cwd / "runs" / "digits" / "001").history
    assert list(history["cohort/left_out"]) == [0, 1, 0]
    assert history["train/steps"][1] == history["train/steps"][0] * 3 / 4


@pytest.mark.slow
def test_a_hanging_client_is_left_out(tmp_cwd: Path, digits: Settings, pools: Pools) -> None:
    faults = {"round_timeout": TIMEOUT}
    file = broken(tmp_cwd, digits, algorithm="hangs", rounds=3, faults=faults)
    spec = build_spec(load(tmp_cwd / file).experiment)
    ship_user_modules()
    lines: list[str] = []
    federation = pools[2].federation(spec, lines.append)
    rounds = [federation.step().metrics for _ in range(3)]
    assert rounds[1]["cohort/left_out"] >= 1  # the client's actor may have had others
    assert any(f"client 1 (inverted), round 2, train: {SILENT}" in line for line in lines)
    assert rounds[2]["cohort/left_out"] == 0
    assert f"left out: client 2 (rotated), evaluation after round 3: {SILENT}" in lines
    start = "personal/local/accuracy/client/"
    measured = [{name for name in metrics if name.startswith(start)} for metrics in rounds]
    assert [len(clients) for clients in measured] == [4, 4, 3]
    assert measured[1] - measured[2] == {f"{start}rotated"}


def test_a_round_in_which_nobody_answers_is_the_last(tmp_cwd: Path, digits: Settings) -> None:
    (line,) = told(1, "run", broken(tmp_cwd, digits, algorithm="mute", **SKIPPING)).splitlines()
    assert "round 2, train: none of the 4 clients answered" in line


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_why_nobody_answers_is_told_from_the_server_actor(tmp_cwd: Path, digits: Settings) -> None:
    skipping = {**SKIPPING, "resources": {"actors": 1}}
    content, said = broken(tmp_cwd, digits, algorithm="mute", **skipping), Said()
    refused(runner.run, content, progress=said)
    assert len(said.find("ValueError: not a word")) == 4


@pytest.mark.slow
@pytest.mark.usefixtures("tmp_cwd", "ray_here")
def test_a_dead_server_actor_is_replaced_and_the_bits_stay(digits: Settings) -> None:
    """With one client actor; two of them, with every method: test_papers_on_ray.py."""
    digits["algorithm"] = {"name": "fedhkd", "threshold": 0.9}
    whole = runner.run(inline(digits, name="whole"))
    killed: list[int] = []

    class Killer(Said):
        def round(self, finished: Any, metric: str) -> None:
            if finished.number == 2 and not killed:
                for process in psutil.Process().children(recursive=True):
                    if " ".join(process.cmdline()).startswith("ray::ServerActor"):
                        killed.append(process.pid)
                        process.kill()

    said = Killer()
    result = runner.run({"experiment": digits}, ["resources.actors=1"], progress=said)
    assert killed and len(said.find("algorithm.threshold=0.9")) == 1  # by the first server alone
    assert "the server actor died; going on from the last checkpoint" in said.lines
    assert result.sha256 == whole.sha256 and list(result.history["round"]) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_a_connected_ray_decides_what_there_is(
    tmp_cwd: Path, digits: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not this machine: Ray may have more, or less."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    digits["rounds"], actors = 1, "resources.actors=1"
    assert runner.run({"experiment": digits}, [actors, "resources.cpus_per_actor=2"]).sha256
    before = sorted(tmp_cwd.rglob("*"))
    refused(runner.run, {"experiment": digits}, [actors, "resources.cpus_per_actor=9"])
    assert sorted(tmp_cwd.rglob("*")) == before


HOOKS = ("server_setup", "exchanges", "send", "send_private", "aggregate", "apply", "refine")


MINE = """from flray import register_algorithm
from flray.algorithms import Algorithm
@register_algorithm("mine")
class Mine(Algorithm):
    def {}({}):
        {}
"""
AT_EVALUATION = """return {}['weight'] if stage.name == 'evaluate' else {}
    views = ('personal',)"""
KEY = "{hook}: KeyError: 'weight' at {place}"


@pytest.mark.parametrize(
    ("hook", "what", "said", "executor"),
    [
        *((hook, "return {}['weight']", f"round 1, {KEY}", "inline") for hook in HOOKS),
        ("send_private", AT_EVALUATION, f"round 1, {KEY}", "inline"),
        ("refine", "server.state['x'] = [1]", "round 1, server.state: ", "inline"),
        ("refine", "server.metrics['x'] = 'high'", "round 1, server.metrics: ValueError", "inline"),
        ("server_setup", "1 / 0", "round 1, {hook}: ZeroDivisionError", "ray"),
    ],
)
@pytest.mark.usefixtures("ray_here")
def test_a_method_that_fails_at_the_server_is_named_with_hook_exception_file_and_line(
    tmp_cwd: Path, digits: Settings, hook: str, what: str, said: str, executor: str
) -> None:
    """Where it raises, also for an evaluation, and where it keeps what cannot be kept."""
    taken = ", ".join(inspect.signature(getattr(Algorithm, hook)).parameters)
    (tmp_cwd / "mine.py").write_text(MINE.format(hook, taken, what))
    file = written({**digits, "plugins": ["mine.py"], "algorithm": "mine"})
    words = [f"resources.executor={executor}", "resources.actors=1"]
    words += ["aggregation.block=2"] * (hook == "apply")
    wanted = said.format(hook=hook, place=f"{tmp_cwd / 'mine.py'}:6")
    assert told(1, "run", file, *words).startswith(f"mine at the server, {wanted}")


OWN = '''
@register_algorithm("half-way")
class HalfWay(Algorithm):
    """Moves only half way to the clients' mean."""

    @functools.cached_property
    def share(self):
        return 0.5

    def apply(self, server, architecture, mean):
        old = server.models[architecture]
        server.models[architecture] = {**old, **{
            n: (old[n] + value) * self.share if value.is_floating_point() else value for n, value in mean.items()}}
'''


def test_a_new_algorithm_from_a_string_runs_on_ray(digits: Settings, pools: Pools) -> None:
    header = "import functools\nfrom flray import register_algorithm\nfrom flray.algorithms import Algorithm\n"
    exec(compile(f"{header}{OWN}", "own", "exec"), {"__name__": "own"})
    spec, plain = (world_of(digits, method) for method in ("half-way", "fedavg"))
    assert pools[2].run_federation(spec).sha256() == inline_digest(spec) != inline_digest(plain)


def in_blocks(digits: Settings, method: str, **changes: Any) -> FederationSpec:
    """In float64, for the sums of float32 weights times whole numbers are exact as a rule, whatever their order."""
    blocks = {"partition": {"name": "iid", "clients": 10}, "aggregation": {"block": 3}}
    some = {"participation": {"fraction": 0.8}, "algorithm": method}
    local = {**digits["local"], "precision": "float64"}
    return built({**digits, **blocks, **some, "local": local}, **changes)


def broken_in_blocks(here: Path, digits: Settings, method: str, **changes: Any) -> FederationSpec:
    (here / "broken.py").write_text(BROKEN)
    return in_blocks(digits, method, plugins=["broken.py"], participation={}, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedbn", "fedskc", "scaffold"])
def test_any_number_of_actors_is_alike(digits: Settings, pools: Pools, method: str) -> None:
    there, same = pools[2].same_as_inline(in_blocks(digits, method))
    assert {"bytes/up", "train/loss"} <= same
    assert there.sha256() != inline_digest(in_blocks(digits, method, aggregation={}))


@pytest.mark.slow
def test_actor_killed_within_a_block(digits: Settings, pools: Pools, tmp_path: Path) -> None:
    alone = in_blocks(digits, "fedbn", participation={})
    dying = dies_once("fedbn", tmp_path, client=4)  # the second of its block
    spec = in_blocks(digits, dying.pop("algorithm"), participation={}, **dying)
    ship_user_modules()
    federation = pools[2].run_federation(spec)
    assert int((tmp_path / "victim").read_text()) not in pids(pools[2].executor_for(spec))
    assert federation.sha256() == inline_digest(alone)


@pytest.mark.slow
def test_killed_before_sum(digits: Settings, pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = in_blocks(digits, "fedskc")
    executor = pools[2].executor_for(spec)
    federation = Federation(spec, executor)
    federation.step()
    victims = kill_an_actor(executor, lambda job: job.client_task.kind == "sum", monkeypatch)
    for _ in range(2):
        federation.step()
    assert victims and victims[0] not in pids(executor)
    assert federation.sha256() == inline_digest(spec)


@pytest.mark.parametrize("method", ["fedskc", "scaffold"])
def test_one_sum_of_a_block_reaches_the_server(digits: Settings, method: str) -> None:
    up = {}
    for block in (None, 1, 10):
        spec = in_blocks(digits, method, aggregation={"block": block})
        up[block] = inline_federation(spec, print).step().metrics["bytes/up"]
    assert 0.99 < up[1] / up[None] < 1.01
    assert 7.9 < up[None] / up[10] < 8.1  # eight clients in one block


def test_only_the_client_that_fails_is_left_out(tmp_cwd: Path, digits: Settings) -> None:
    lines: list[str] = []
    changes = {"faults": {"on_client_error": "skip"}, "rounds": 2}
    specs = [broken_in_blocks(tmp_cwd, digits, "breaks", **changes)]
    specs += [broken_in_blocks(tmp_cwd, digits, "breaks", aggregation={}, **changes)]
    blocked, plain = (inline_federation(spec, lines.append) for spec in specs)
    metrics = [blocked.step().metrics for _ in range(2)]
    assert [m["cohort/left_out"] for m in metrics] == [0, 1]
    assert [m["bytes/up"] for m in metrics] == [metrics[0]["bytes/up"]] * 2  # its block still came
    (line,) = lines
    assert "left out: client 2 (client2), round 2, train: ValueError: this batch is not" in line
    # Left out by the plain mean it leaves the same model, but for the last bits of other sums.
    for _ in range(2):
        plain.step()
    for name, value in plain.server.model.items():
        torch.testing.assert_close(blocked.server.model[name], value, rtol=1e-12, atol=1e-12)


def test_a_client_that_fails_ends_the_run_at_once(tmp_cwd: Path, digits: Settings) -> None:
    spec = broken_in_blocks(tmp_cwd, digits, "breaks", aggregation={"block": 10})
    federation = inline_federation(spec, print)
    federation.step()
    refused(federation.step)


LOST = "round 1, train: its actor died 2 times while running this block"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "words"), [("crashes", LOST), ("hangs", f"round 2, train: {SILENT}")]
)
def test_a_block_that_dies_or_hangs_is_left_out(
    tmp_cwd: Path, digits: Settings, pools: Pools, method: str, words: str
) -> None:
    skipped = {"on_client_error": "skip", "attempts": 2}
    faults = skipped if method == "crashes" else {"round_timeout": TIMEOUT}
    spec = broken_in_blocks(tmp_cwd, digits, method, faults=faults)
    ship_user_modules()
    lines: list[str] = []
    federation = pools[2].federation(spec, lines.append)
    metrics = federation.step().metrics
    if method == "hangs":
        assert not lines
        metrics = federation.step().metrics
    named = {int(line.split("client ")[1].split()[0]) for line in lines if words in line}
    # The hanging block's actor had others waiting behind it, which time out too.
    assert named == {0, 1, 2} if method == "crashes" else {0, 1, 2} <= named < set(range(10))
    assert metrics["cohort/left_out"] == len(named) == len(lines)
