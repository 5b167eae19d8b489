"""Suites: the YAML files that reproduce the papers' tables, and smoke forms of any file."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from flray import registry
from flray.config import arms, yaml_files
from flray.config.experiment import Config, Experiment
from flray.config.loader import set_path
from flray.config.sections import SETS_VALIDATION_APART
from flray.config.sweep import Repeat, Sweep
from flray.config.yaml_files import Plain
from flray.files.tracking_address import at_home

ROUNDS, SAMPLES, PER_CLIENT, BATCH = 2, 120, 30, 16
PUBLIC = 64
SMOKE = "-smoke"
"""Suffix of a smoke run's name."""
STAND_IN = "stand-in"
"""The data set of noise that has another's form."""
_OF_ANY_FORM = {"size", "domains", "samples", "seed"}
_ALGORITHM = {"public_size": PUBLIC, "public_batch_size": 32, "pretrain_epochs": 1}
_APART = {"fedbn-digits", *SETS_VALIDATION_APART}
"""Splits whose sizes or shares do not fit a few samples; most set validation samples apart."""
_SMALL: dict[str, Plain] = {
    "rounds": ROUNDS,
    "shift.sizes": {},
    "shift.ratio": 1.0,
    "local.epochs": 1,
    "local.batch_size": BATCH,
    "evaluation.every": 1,
}
"""Values of a smoke run; those of the full data do not fit a few samples."""


def smoke(config: Config, absent: Collection[str] = ()) -> Config:
    """Return a sweep (or run) that proves that every method of a file runs, in minutes instead of days.

    Two rounds of one epoch, a few samples per domain (30 per client where the partition names their
    number), small public batches, one seed, no early stopping; one combination of arms is run
    for every arm of the first axis, and the arms of the others once. Results mean nothing; the name
    ends in ``-smoke``.

    Parameters
    ----------
    config : Config
        The sweep or run, whose arms are known to be right.
    absent : collection of str
        Data sets that are not here; noise in their form stands in for them.
    """
    most = max([SAMPLES, *(PER_CLIENT * int(clients) for clients in _client_counts(config))])
    experiment = _shrink(config, most, absent)
    small = {axis: dict(one) for axis, one in config.arms.items()}
    for axis, name in _selected(config):
        small[axis][name] = _small_arm(small[axis][name], absent)
    shorter = {
        **dict.fromkeys(("scheduler", "tune", "until")),
        "seeds": config.sweep.seeds[:1],
        "repeat": Repeat(),
        "skip": (*config.sweep.skip, *_repetitions(config)),
        # The rules without the settings that smoke replaces.
        "where": tuple(
            rule.model_copy(update={"settings": left})
            for rule in config.sweep.where
            if (left := {p: v for p, v in rule.settings.items() if not _fixed_clients(p)})
        ),
    }
    sweep = config.sweep.model_copy(update=shorter)
    space = {path: domain for path, domain in config.space.items() if not _fixed_clients(path)}
    return config.model_copy(
        update={"experiment": experiment, "arms": small, "sweep": sweep, "space": space}
    )


def _small_arm(arm: Mapping[str, Plain], absent: Collection[str]) -> dict[str, Plain]:
    """Return the settings of an arm, or parts of the experiment, in a smoke run."""
    changes = {p: v for p, v in arm.items() if not _fixed_clients(p) and p != arms.SPACE}
    if "algorithm" in changes:
        changes |= _shorten_training(changes["algorithm"])
    if "partition" in changes:
        changes["partition"] = _partition_with_two(changes["partition"])
    if isinstance(changes.get("public"), Mapping):
        changes["public"] = {**changes["public"], "samples": PUBLIC}
    for part in {"data", "public"} & changes.keys():
        changes[part] = _stand_in(changes[part], absent)
    return changes


def stand_in_line(config: Mapping[str, Plain]) -> str:
    """Return a line on the data sets that noise stands in for; empty where all data are the real ones."""
    settings = [
        config.get("experiment") or {},
        *(changes or {} for one in (config.get("arms") or {}).values() for changes in one.values()),
    ]
    chosen = [one.get(part) for one in settings for part in ("data", "public")]
    names = {
        str((one.get("options") or one).get("of")): None
        for one in chosen
        if isinstance(one, Mapping) and one.get("name") == STAND_IN
    }
    return f"noise stands in for data that are not here: {', '.join(names)}" if names else ""


def files(folder: Path | None = None) -> dict[str, Path]:
    """Return the suites by name (``fedco2/table1``), in the order of the papers and their tables.

    Parameters
    ----------
    folder : Path, optional
        Their folder; by default ``search_spaces/papers`` of the current folder if it has suites,
        else the one that comes with flray.

    Raises
    ------
    FlrayError
        If the folder does not exist.
    """
    from flray.papers import PAPERS

    here = Path.cwd() / yaml_files.FOLDER / "papers"
    found = folder or (here if any(here.glob("*/*.yaml")) else yaml_files.folder() / "papers")
    paths = [path for path in found.glob("*/*.yaml") if not path.name.startswith("_")]

    def place(path: Path) -> tuple[int, int, int, str]:
        known, kinds, stem = list(PAPERS), ("table", "fig"), path.stem
        kind = stem.rstrip("0123456789")
        return (
            known.index(path.parent.name) if path.parent.name in known else len(known),
            kinds.index(kind) if kind in kinds else len(kinds),
            int(stem.removeprefix(kind) or 0),
            stem,
        )

    return {f"{path.parent.name}/{path.stem}": path for path in sorted(paths, key=place)}


def data_names(content: Mapping[str, Plain]) -> list[str]:
    """Return the data sets that a suite's content names."""
    return list(dict.fromkeys(choice["name"] for choice in data_choices(content)))


def data_choices(content: Mapping[str, Plain]) -> list[dict[str, Plain]]:
    """Return the data sets that a suite will run, each as its ``name`` and its options."""
    only = (content.get("sweep") or {}).get("only") or {}
    axes = [
        [changes or {} for name, changes in one.items() if name in only.get(axis, one)]
        for axis, one in (content.get("arms") or {}).items()
    ]
    found = [changes["data"] for one in axes for changes in one if "data" in changes]
    if not any(all("data" in changes for changes in one) for one in axes):
        found.insert(0, content["experiment"]["data"])
    return [dict(one) if isinstance(one, Mapping) else {"name": str(one)} for one in found]


def run_count(content: Mapping[str, Plain]) -> int:
    """Return the runs of a suite: combinations of its arms times seeds."""
    sweep = Sweep.model_validate(content.get("sweep") or {})
    parts: dict[str, Plain] = {"arms": content["arms"], "sweep": sweep}
    laid_out = Config.model_construct(**parts)
    return sum(1 for _ in arms.combine_arms(laid_out)) * max(1, len(sweep.seeds))


def _client_counts(config: Config) -> Iterator[int]:
    yield config.experiment.partition.options.get("clients", 0)
    for changes in _arms(config):
        own, path = changes.get("partition"), "partition.clients"
        yield own.get("clients", 0) if isinstance(own, Mapping) else changes.get(path, 0)


def _arms(config: Config) -> list[Mapping[str, Plain]]:
    """Return the settings of every arm that is run."""
    return [config.arms[axis][name] for axis, name in _selected(config)]


def _selected(config: Config) -> list[tuple[str, str]]:
    return [(axis, name) for axis, names in arms.select_arms(config).items() for name in names]


def _shrink(config: Config, most: int, absent: Collection[str]) -> Experiment:
    whole = config.model_dump(mode="json", include={"experiment"})
    content = whole["experiment"]
    chosen = {part: content[part] for part in ("data", "public", "partition", "algorithm")}
    changes = {
        **_SMALL,
        "name": f"{content['name']}{SMOKE}"[-100:],
        "subset": most,
        "episodes": {"shot": 1, "queries": 1, "test": 20, "way": content["episodes"]["way"]},
        **_small_arm(chosen, absent),
    }
    splits = (config.experiment.split, *(changes.get("split") for changes in _arms(config)))
    if any(isinstance(split, str) and split in _APART for split in splits):
        changes["evaluation.validation"] = 0.2
    if str(content["split"]) in _APART:
        changes["split"] = "official"
    for path, value in changes.items():
        set_path(whole, path, value)
    return Experiment.model_validate(content)


def _stand_in(choice: Plain, absent: Collection[str]) -> Plain:
    """Return a choice of data, by noise in their form if they are not here; a file that is there stays."""
    given = {"name": choice} if isinstance(choice, str) else choice
    if not isinstance(given, Mapping) or given.get("name") not in absent:
        return choice
    if given.get("path") and Path(at_home(str(given["path"]))).exists():
        return choice
    kept = {key: given[key] for key in _OF_ANY_FORM & given.keys() if given[key] is not None}
    return {"name": STAND_IN, "of": given["name"], **kept}


def _partition_with_two(partition: Plain) -> dict[str, Plain]:
    """Return a partition that gives every client the two samples that a batch norm needs."""
    given = {"name": partition} if isinstance(partition, str) else dict(partition)
    known = registry.partitions.params(str(given["name"])).model_fields
    if "min_size" not in known:
        return given
    return {**given, "min_size": max(2, int(given.get("min_size", 1)))}


def _fixed_clients(path: str) -> bool:
    return path.removeprefix("experiment.") in (*_SMALL, "subset", "split")


def _shorten_training(algorithm: Plain) -> dict[str, Plain]:
    """Return smaller values for the options of a method that would make it long."""
    given = algorithm if isinstance(algorithm, Mapping) else {"name": algorithm}
    known = registry.algorithms.params(str(given.get("name"))).model_fields
    return {
        f"algorithm.{key}": value
        for key, value in _ALGORITHM.items()
        if key in known and (key != "pretrain_epochs" or given.get(key, known[key].default))
    }


def _repetitions(config: Config) -> Iterator[dict[str, tuple[str, ...]]]:
    """Yield rules that skip combinations whose arms all occur in earlier ones."""
    axes = arms.select_arms(config)
    covered: set[tuple[str, str]] = set()
    for named in arms.combine_arms(config):
        parts = {(axis, named[f"{arms.PREFIX}{axis}"]) for axis in axes}
        if axes and parts <= covered:
            yield {axis: (name,) for axis, name in parts}
        covered |= parts
