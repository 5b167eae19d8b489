"""From a data set and a partition to a federation's data: who trains, validates and tests on which rows."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flray.config.sections import SETS_VALIDATION_APART, Normalisation, Shift, SplitName
from flray.data import splits
from flray.data.partitions.given import file as given_split
from flray.data.types import ClientIndices, DataSet, FederatedData, Labels, Pooled, Rows
from flray.errors import ConfigError, DataError, nearest
from flray.registry import partitions, tasks
from flray.rng import numpy_generator

if TYPE_CHECKING:
    import pandas as pd

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's red, green and blue, as torchvision's networks want them."""
_NAMED = {"imagenet": IMAGENET, "none": ((0.0,), (1.0,))}


def with_normalisation(data: FederatedData, how: Normalisation) -> FederatedData:
    """Return federated data whose images are normalised as ``normalisation`` says.

    Parameters
    ----------
    data : FederatedData
        Federated data with the mean and deviation of their data set.
    how : Normalisation
        The setting.

    Raises
    ------
    ConfigError
        If samples are not 8-bit images, or the number of values differs from that of channels.
    """
    if how == "data":
        return data
    mean, std = _NAMED[how] if isinstance(how, str) else (how.mean, how.std)
    found = how if isinstance(how, str) else f"mean of {len(mean)} values"
    if data.x.dtype != np.uint8:
        raise ConfigError(
            "experiment.normalisation",
            found,
            f"samples of {data.dataset} are no 8-bit images but {data.x.dtype}, which are taken as "
            "they are; data",
        )
    if len(mean) not in (1, data.shape[0]):
        raise ConfigError(
            "experiment.normalisation",
            found,
            f"images of {data.dataset} have {data.shape[0]} channels; give mean and std of 1 or {data.shape[0]} "
            "values, or data",
        )
    return replace(data, mean=mean, std=std)


_SETTING = "experiment.participation.unseen"


def keep_unseen(data: FederatedData, wanted: float | Sequence[str], seed: int) -> FederatedData:
    """Move some clients from `FederatedData.clients` to `FederatedData.unseen`.

    The common test set is then that of the remaining clients. The rows of the samples do not change;
    the data set's mean and deviation still cover all its training samples.

    Parameters
    ----------
    data : FederatedData
        A partition.
    wanted : float or sequence of str
        A number of clients, or below 1 a share of them, drawn by the seed; or names of clients and
        domains. 0 and an empty sequence move no client.
    seed : int
        The partition's seed.

    Raises
    ------
    ConfigError
        If a client does not exist, or no client would remain.
    """
    if not wanted:
        return data
    names = [client.name for client in data.clients]
    if isinstance(wanted, int | float):
        count = round(wanted * len(names)) if wanted < 1 else int(wanted)
        order = numpy_generator(seed, "partition", extra="unseen").permutation(len(names))
        kept_out = set(order[:count].tolist())
        shown = f"{wanted:g}"
    else:
        known = {*names, *(client.domain for client in data.clients)}
        for name in wanted:
            if name not in known:
                raise ConfigError(
                    _SETTING, repr(name), f"no client or domain has this name{nearest(name, known)}"
                )
        kept_out = {
            number
            for number, client in enumerate(data.clients)
            if client.name in wanted or client.domain in wanted
        }
        shown = ", ".join(wanted)
    if not 0 < len(kept_out) < len(names):
        why = f"that is {len(kept_out)} of the {len(names)} clients; keep at least one out, and one to train"
        raise ConfigError(_SETTING, shown, why)
    clients = tuple(c for number, c in enumerate(data.clients) if number not in kept_out)
    return replace(
        data,
        clients=clients,
        unseen=tuple(data.clients[number] for number in sorted(kept_out)),
        test=np.concatenate([client.test for client in clients]),
    )


def partition_table(data: FederatedData) -> pd.DataFrame:
    """Return one row per client with its numbers of samples.

    Returns
    -------
    DataFrame
        Columns ``client, domain, origin, train, val, test`` (numbers of samples; a pooled client's
        origin lists those of all domains, joined by ``+``). ``unseen`` if some clients do not train,
        ``noise`` if any sample has noise (standard deviation on normalised inputs). If samples have
        classes, one column per class with its number of training samples.
    """
    import pandas as pd

    rows = []
    classes, table = replace(data, clients=data.everyone, unseen=()).class_table()
    for number, (client, counts) in enumerate(zip(data.everyone, table, strict=True)):
        own = data.origins.get(client.domain)
        origins = {own} if own is not None else set(data.origins.values())
        rows.append(
            {
                "client": client.name,
                "domain": client.domain,
                "origin": "+".join(sorted(origins)),
                "train": len(client.train),
                "val": len(client.val),
                "test": len(client.test),
                **({"unseen": number >= len(data.clients)} if data.unseen else {}),
                **({"noise": float(data.noise[client.train[0]])} if data.noise is not None else {}),
                **(dict(zip(classes, counts.tolist(), strict=True)) if data.has_classes else {}),
            }
        )
    return pd.DataFrame(rows)


Split = SplitName | tuple[float, float, float]
_MANY = 100_000  # clients: up to so many the partition itself says why they are too many
# Take labels to count samples or to stratify, no more.
_WITHOUT_CLASSES = frozenset({"iid", "domains", "quantity"})


def federate(
    dataset: DataSet,
    partition_name: str,
    options: dict[str, Any],
    seed: int,
    val_fraction: float = 0.0,
    pooled: Pooled | None = None,
    fingerprint: str | None = None,
    split: Split = "official",
    shift: Shift | None = None,
    unseen: float | Sequence[str] = 0,
) -> FederatedData:
    """Partition a data set into clients.

    A client's test part mirrors its training part: the test samples of each class (of each class of
    each domain, if the partition keeps clients to domains) go to the clients in proportion to their
    training samples of it. A client with very few training samples may therefore have no test
    samples. Training samples that the partition gives to nobody take their share of the test
    samples with them.

    The order: split, long tail, private sizes, partition, validation, ratio, noise.

    Parameters
    ----------
    dataset : DataSet
        Its domains' training parts, then their test parts, become the rows of the result.
    partition_name : str
        Registered partition.
    options : dict
        Its options.
    seed : int
        The experiment's seed.
    val_fraction : float
        Share of each client's training samples set apart for validation, in [0, 1); the training
        part keeps at least one sample.
    pooled : Pooled, optional
        The data set's samples in one array, if they exist already; this saves a copy.
    fingerprint : str, optional
        The data set's fingerprint, if it is known; computing it reads every sample.
    split : str or three floats
        The training, validation and test data; ``experiment.split``.
    shift : Shift, optional
        ``experiment.shift``; none by default.
    unseen : float or sequence of str
        ``experiment.participation.unseen``; see `flray.data.federated.keep_unseen`.

    Raises
    ------
    FlrayError
        If the partition or an option is unknown, an option does not suit the data, or a client gets
        no samples.
    """
    if not 0 <= val_fraction < 1:
        raise ConfigError("val_fraction", repr(val_fraction), "a number at least 0 and below 1")
    if val_fraction and (isinstance(split, tuple) or split in SETS_VALIDATION_APART):
        shown = split if isinstance(split, str) else list(split)
        why = f"0 with split {shown}, which sets validation samples apart itself"
        raise ConfigError("experiment.evaluation.validation", repr(val_fraction), why)
    trains_y, tests_y = zip(*((d.train_y, d.test_y) for d in dataset.domains), strict=True)
    train_domain, test_domain = _domain_ids(trains_y), _domain_ids(tests_y)
    pooled = pooled or Pooled.of(dataset)
    domains, y = np.concatenate([train_domain, test_domain]), _labels(dataset.task, pooled.y)
    function, shift = partitions.get(partition_name), shift or Shift()
    parameters = inspect.signature(function).parameters
    by_domain = "domains" in parameters
    if "labels" in parameters:
        unclassed = dataset.domains[0].train_y.ndim > 1 and not y.any()
        if unclassed and partition_name not in _WITHOUT_CLASSES:
            raise DataError(
                f"partition {partition_name}: splits by class, and samples of data set {dataset.name} "
                f"have none ({dataset.task}); take {' or '.join(sorted(_WITHOUT_CLASSES))}"
            )
    division = splits.divide(
        split,
        y,
        domains,
        len(train_domain),
        [d.name for d in dataset.domains],
        shift.ratio,
        dataset.ordered,
    )
    division = _apply_shift(division, dataset, y, domains, seed, shift)
    given: dict[str, dict[str, Rows]] = {}
    if function is given_split:
        _check_plain(split, shift)
        given = given_split(
            pooled.y, len(train_domain), **partitions.checked(partition_name, options)
        )
    tested = any("test" in parts for parts in given.values())
    if tested:  # then any sample may be one to train on
        division = replace(division, fit=np.arange(len(y)))
    fit_y, fit_domain = y[division.fit], domains[division.fit]
    context = {"labels": fit_y, "domains": fit_domain, "seed": seed}
    if dataset.coarse is not None:
        context["superclasses"] = np.array(dataset.coarse, dtype=np.int64)[fit_y]
    for name in ("clients", "clients_per_domain", "parts"):
        asked = options.get(name)
        # Before arrays of that many are made.
        if isinstance(asked, int) and asked > max(len(fit_y), _MANY):
            raise DataError(
                f"partition {partition_name}: found {asked} {name} for {len(fit_y)} training samples "
                f"of data set {dataset.name}; each needs one, so at most {len(fit_y)}"
            )
    wanted = [p.name for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    trains = [parts["train"] for parts in given.values()] or _partition(
        partition_name, options, wanted, context
    )

    domain_names = ["pooled"] * len(trains)
    if by_domain or given or len(dataset.domains) == 1:
        homes = [np.unique(fit_domain[rows]) for rows in trains]
        domain_names = [
            dataset.domains[home[0]].name if len(home) == 1 else "pooled" for home in homes
        ]
    names = list(given) or _client_names(domain_names, by_domain)
    for k, rows in enumerate(trains):
        if not len(rows):
            raise DataError(
                f"partition {partition_name}: client {k} of {len(trains)} gets no training samples of data set "
                f"{dataset.name} ({len(fit_y)} samples); take fewer clients, more samples or a less skewed partition"
            )

    num_classes = max(len(dataset.classes), int(y.max(initial=0)) + 1)
    groups = (domains if by_domain else np.zeros_like(domains)) * num_classes + y
    trains = [division.fit[rows] for rows in trains]
    taken = [*trains, *(parts["val"] for parts in given.values())]
    nobody = np.setdiff1d(division.fit, np.concatenate(taken), assume_unique=True)
    holders = [*trains, *([nobody] if len(nobody) else [])]

    def assigned(part: Rows) -> list[Rows]:
        found = splits.assign_test_samples(holders, groups, groups[part], num_classes)
        return [part[rows] for rows in found]

    vals = [parts["val"] for parts in given.values()] or assigned(division.val)
    tests = [parts["test"] for parts in given.values()] if tested else assigned(division.test)

    clients = []
    for k, (name, domain, rows) in enumerate(zip(names, domain_names, trains, strict=True)):
        if isinstance(split, tuple):
            train, val, test = splits.by_client(rows, split, seed, k)
        else:
            size = min(round(val_fraction * len(rows)), len(rows) - 1)
            generator = numpy_generator(seed, "partition", client=k, extra="validation")
            shuffled = generator.permutation(rows)
            train, test = np.sort(shuffled[size:]), tests[k]
            val = np.sort(np.concatenate([shuffled[:size], vals[k]]))
        if split != "fedbn-digits":
            train = splits.used_share(train, seed, k, shift.ratio)
        clients.append(ClientIndices(name, domain, train, val, test))
    noise = None
    if shift.noise:
        held_rows = [np.concatenate([c.train, c.val, c.test]) for c in clients]
        noise = splits.noise_levels(held_rows, len(y), shift.noise)
    held = FederatedData(
        dataset=dataset.name,
        x=pooled.x,
        y=pooled.y,
        clients=tuple(clients),
        test=np.concatenate([client.test for client in clients]),
        classes=tuple(map(str, dataset.classes)),
        mean=dataset.mean,
        std=dataset.std,
        task=dataset.task,
        origins={d.name: d.origin for d in dataset.domains},
        fingerprint=fingerprint or dataset.fingerprint,
        public=pooled.public,
        noise=noise,
        encoding=dataset.encoding,
        columns=dataset.columns,
    )
    return keep_unseen(held, unseen, seed)


def _check_plain(split: Split, shift: Shift) -> None:
    """Refuse settings that would change a split that a file gives."""
    remedy = "the file of partition.path says who trains and tests on what; "
    if split != "official":
        found = split if isinstance(split, str) else str(list(split))
        raise ConfigError("experiment.split", found, f"{remedy}official, or leave it out")
    if shift.long_tail or shift.test_long_tail or shift.sizes or shift.ratio != 1:
        given = shift.model_dump(exclude_defaults=True)
        found = ", ".join(f"{name} {value}" for name, value in given.items())
        raise ConfigError("experiment.shift", found, f"{remedy}noise alone, or leave it out")


def _apply_shift(
    division: splits.Division, dataset: DataSet, y: Rows, domains: Rows, seed: int, shift: Shift
) -> splits.Division:
    """Return the division with fewer samples, as the long tails and the private sizes want it."""

    def tail(rows: Rows, name: str, purpose: str) -> Rows:
        if (rho := getattr(shift, name)) is None:
            return rows
        why = "" if len(rows) else "leave it out: of a split in shares, long_tail changes all parts"
        if dataset.domains[0].train_y.ndim > 1:
            why = f"samples of {dataset.name} have no classes; leave it out"
        if why:
            raise ConfigError(f"experiment.shift.{name}", str(rho), why)
        classes = len(dataset.classes)
        return rows[splits.long_tail(y[rows], domains[rows], seed, rho, classes, purpose)]

    fit = tail(division.fit, "long_tail", "long-tail")
    test = tail(division.test, "test_long_tail", "long-tail/test")
    names = [d.name for d in dataset.domains]
    fit = fit[splits.private_sizes(domains[fit], names, seed, shift.sizes)]
    return replace(division, fit=fit, test=test)


def _partition(
    name: str, options: dict[str, Any], wanted: list[str], context: dict[str, Any]
) -> list[Rows]:
    """Call a partition with the context it wants, and check what it returns."""
    if unknown := [parameter for parameter in wanted if parameter not in context]:
        if unknown[0] == "superclasses":
            raise DataError(
                f"partition {name}: needs superclasses of the classes, as cifar-100 has them; this data set has none"
            )
        raise DataError(
            f"partition {name}: unknown positional parameter {unknown[0]!r}; it may take "
            f"{', '.join(context)}, options are keyword-only"
        )
    found = partitions.call(
        name, *(context[parameter] for parameter in wanted), **partitions.checked(name, options)
    )
    given = [np.asarray(part) for part in found] if isinstance(found, Iterable) else []
    whole = all(one.ndim == 1 and one.dtype.kind in "iuf" and (one % 1 == 0).all() for one in given)
    parts = [np.sort(one.astype(np.int64)) for one in given] if whole else []
    line = np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)
    if not parts or (
        len(line)
        and (line[0] < 0 or line[-1] >= len(context["labels"]) or (np.diff(line) == 0).any())
    ):
        raise DataError(
            f"partition {name}: must return the rows of each client, of one at least: whole numbers between 0 and "
            f"{len(context['labels']) - 1}, no row twice"
        )
    return parts


def _domain_ids(parts: Sequence[Labels]) -> Rows:
    return np.repeat(np.arange(len(parts), dtype=np.int64), [len(part) for part in parts])


def _labels(task: str, y: Labels) -> Rows:
    """Return the labels of all samples that partitions divide by; without any, all samples are of one class."""
    if y.ndim == 1:
        return y.astype(np.int64, copy=False)
    found: Rows | None = None
    if y.ndim == 2 and hasattr(tasks.get(task), "partition_labels"):
        found = tasks.get(task).partition_labels(y.copy())  # what it writes to is its own
    if found is None:
        return np.zeros(len(y), dtype=np.int64)
    if found.shape != y.shape[:1] or found.dtype != np.int64 or found.min(initial=0) < 0:
        raise DataError(
            f"task {task}: partition_labels returned {found.dtype} {list(found.shape)}, from "
            f"{found.min(initial=0)}; it has to return int64 [{len(y)}], from 0"
        )
    return found


def _client_names(domains: Sequence[str], by_domain: bool) -> list[str]:
    """Name clients after their domain, numbered where several share it."""
    if not by_domain:
        width = len(str(len(domains) - 1))
        return [f"client{k:0{width}d}" for k in range(len(domains))]
    return [
        name if domains.count(name) == 1 else f"{name}{domains[:k].count(name)}"
        for k, name in enumerate(domains)
    ]
