"""What the members of a population copy, where saving is slow or a member crashes."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from flray.config.loader import load
from flray.config.sweep import Pbt
from flray.records.trial_checkpoints import checkpoints
from flray.tuning.population import TIME, Population

ROUNDS = 8


def run_population(
    content: dict[str, Any], folder: Path, slow: str, crashes: str
) -> dict[str, list[list[Any]]]:
    """Run two members, of which one saves slowly and one may crash; return what each did, round by round."""

    class Member(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.point, self.done = new_config["point"], 0
            self.model = [self.point["number"]]
            return True

        def step(self) -> dict[str, Any]:
            number = self.point["number"]
            crash = folder / "crashed"
            if number == crashes and self.done == 4 and not crash.exists():
                crash.touch()
                os._exit(1)
            self.done += 1
            time.sleep(0.05 if number == slow else 0.4)  # so that the slow one saves first
            line = [self.done, self.point["values"], self.model, self.point.get("course")]
            with (folder / f"{number}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            score = (self.done // 2) % 2 if number == "0001" else 0.5
            return {
                "score": score,
                "report": json.dumps({"course": [number, self.done]}),
                TIME: self.done,
                "done": self.done == ROUNDS,
            }

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            time.sleep(1.5 if self.point["number"] == slow else 0.0)
            state = {"done": self.done, "model": self.model}
            Path(checkpoint_dir, f"round-{self.done}.json").write_text(json.dumps(state))

        def load_checkpoint(self, checkpoint_dir: str) -> None:
            (file,) = Path(checkpoint_dir).iterdir()  # one state, nothing left of another
            state = json.loads(file.read_text())
            self.done = state["done"]
            self.model = [*state["model"], self.point["number"]]

    content["experiment"]["rounds"] = ROUNDS
    config = load({**content, "space": {"local.lr": {"loguniform": [1e-4, 0.2]}}, "sweep": {}})
    points = [
        {"number": number, "values": {"local.lr": lr}}
        for number, lr in (("0001", 0.01), ("0002", 0.1))
    ]

    def name(trial: Any) -> str:
        return str(trial.config["point"]["number"])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tune.Tuner(
            tune.with_resources(Member, {"CPU": 0.1}),
            param_space={"point": tune.grid_search(points)},
            tune_config=tune.TuneConfig(
                scheduler=Population(
                    config, Pbt(name="pbt", perturbation_interval=2, quantile=0.5), 0
                ),
                reuse_actors=True,
                trial_name_creator=name,
                trial_dirname_creator=name,
            ),
            run_config=tune.RunConfig(
                name="001",
                storage_path=str(folder / "tune"),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=2),
            ),
        ).fit()
    return {
        number: [json.loads(line) for line in (folder / f"{number}.jsonl").read_text().splitlines()]
        for number in ("0001", "0002")
    }


@pytest.mark.slow
@pytest.mark.usefixtures("ray_here")
def test_exchanges_do_not_depend_on_who_saves_slowly_or_crashes(
    content: dict[str, Any], tmp_path: Path
) -> None:
    found = []
    for label, slow, crashes in (("a", "0001", ""), ("b", "0002", ""), ("c", "0002", "0001")):
        folder = tmp_path / label
        folder.mkdir()
        found.append(run_population(content, folder, slow, crashes))
        for number in ("0001", "0002"):
            rounds = [reference.round for reference in checkpoints(str(folder / "tune"), number)]
            assert rounds == [8, 6, 4, 2]  # one of each exchange, so all can go on from the last
    assert found[0] == found[1] == found[2]
    first, second = found[0].values()
    assert [line[0] for line in first] == [line[0] for line in second] == [*range(1, ROUNDS + 1)]
    # At round 2 the second copies the first; at round 4 the first copies the second, and so on.
    assert [line[2] for line in second[2:4]] == [["0001", "0002"]] * 2
    assert second[2][1] != second[1][1] and second[2][3] == ["0002", 2]
    assert first[4][2] == ["0001", "0002", "0001"] and first[4][3] == ["0001", 4]
