"""What lies in Tune's storage, a bucket perhaps, is never unpickled."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from ray.train._internal.storage import StorageContext
from ray.tune.experiment import Trial
from ray.tune.result_grid import ResultGrid

from flray.config.loader import load
from flray.records import directory
from flray.runs.progress import NullProgress
from flray.tuning.callback import TrialRecorder
from tests.tuning.test_step import trial_of


class Planted:
    """Writes a file when it is unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def test_a_checkpoint(content: dict[str, Any], tmp_cwd: Path) -> None:
    content["sweep"]["scheduler"] = "asha"  # a round for each step
    first = trial_of(content, str(tmp_cwd / "tune"))
    first.train()
    saved = first.save(str(tmp_cwd / "saved"))
    folder = Path(saved.checkpoint.path)
    pickle_file = folder / "_dict_checkpoint.pkl"  # the name under which Tune would keep a dict
    pickle_file.write_bytes(pickle.dumps(Planted(tmp_cwd / "executed")))
    again = trial_of(content, str(tmp_cwd / "tune"))
    again.restore(saved)
    assert not (tmp_cwd / "executed").exists()
    assert again.iteration == 1
    assert again._federation.sha256() == first._federation.sha256()
    assert again.step()["training_iteration"] == 2
    pickle.loads(pickle_file.read_bytes())
    assert (tmp_cwd / "executed").exists()  # the trap works


def test_a_trial_s_last_error(content: dict[str, Any], tmp_cwd: Path) -> None:
    trial = Trial(
        "planted",
        stub=True,
        storage=StorageContext(str(tmp_cwd), "experiment", trial_dir_name="0001"),
    )
    trial.run_metadata.pickled_error_filename = "error.pkl"
    folder = Path(trial.storage.trial_fs_path)
    folder.mkdir(parents=True)
    (folder / "error.pkl").write_bytes(pickle.dumps(Planted(tmp_cwd / "executed")))
    directory.write(tmp_cwd, "sweep", directory.new_identity())
    TrialRecorder(tmp_cwd, load(content), {}, 0, None, NullProgress()).on_experiment_end([trial])
    assert ResultGrid._populate_exception(trial) is None
    assert not (tmp_cwd / "executed").exists()
    trial.run_metadata.pickled_error_filename = "error.pkl"
    ResultGrid._populate_exception(trial)
    assert (tmp_cwd / "executed").exists()
