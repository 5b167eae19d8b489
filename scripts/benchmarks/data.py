"""Batches per second: flray's resident samples beside a DataLoader with workers, same images and transforms, one run.

Both make the batches of one epoch over one client's training data, shuffled, augmented and
normalised, and do nothing with them. They take turns, epoch by epoch, so that whatever else the
machine does hits both; the ratio is the median of the epochs' ratios. The loader keeps its workers
between epochs and works on tensors, not on files. Exits with 1 if a ratio is below the limit.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from runner import option, show, spec_of, take_turns
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flray import rng
from flray.data.augment import augment_batch
from flray.data.types import DataSet, Domain
from flray.federation.worker.client_runner import ClientRunner
from flray.registry import register_dataset

HOW = ("none", "crop", "weak", "strong")
MEAN, STD = (0.5, 0.45, 0.4), (0.25, 0.25, 0.25)


@dataclass
class Options:
    samples: int = 5000
    side: int = option(32, "height and width of an image")
    batch: int = 64
    workers: int = option(2, "of the DataLoader")
    epochs: int = option(7, "measured epochs of each")
    augment: Sequence[str] = option(HOW, choices=HOW)
    device: str = "cpu"
    limit: float = option(3.0, "least ratio")


@register_dataset("bytes")
def random_bytes(root: Path, *, samples: int, side: int) -> DataSet:
    draw = partial(np.random.default_rng(0).integers, dtype=np.uint8)
    parts: list[Any] = []
    for n in (samples, 10):
        parts += [draw(0, 256, (n, 3, side, side)), np.arange(n, dtype=np.int64) % 10]
    return DataSet("bytes", (Domain("bytes", "random", *parts),), tuple("0123456789"), MEAN, STD)


class Images(Dataset[tuple[Tensor, int]]):
    """Images in memory with the transforms of one augmentation, as a training script would have them."""

    def __init__(self, x: Tensor, y: Tensor, how: str) -> None:
        # After flray, which makes it importable beside a torch without CUDA.
        from torchvision.transforms import v2

        side, flip = x.shape[-1], v2.RandomHorizontalFlip()
        weak = [v2.RandomResizedCrop(side, (0.2, 1.0), antialias=False), flip]
        jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
        steps: dict[str, list[Any]] = {
            "none": [],
            "crop": [v2.RandomCrop(side, padding=4), flip],
            "weak": weak,
            "strong": [*weak, jitter, v2.RandomGrayscale(0.2)],
        }
        scaled = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        self.x, self.y, self.transform = x, y, v2.Compose([*steps[how], *scaled])

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.x[index]), int(self.y[index])


def finished(last: Tensor, started: float) -> float:
    """Return the seconds until the last batch is ready."""
    if last.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


class Resident:
    """The batches of a client's epoch as its turn makes them."""

    def __init__(self, options: Options, how: str) -> None:
        self.spec = spec_of(
            {
                "data": {"name": "bytes", "samples": options.samples, "side": options.side},
                "model": "linear",
                "algorithm": "local",
                "local": {"augment": how, "batch_size": options.batch},
            }
        )
        runner = ClientRunner(self.spec, torch.device(options.device))
        self.samples = runner._resources.samples(self.spec.data.clients[0].train)
        self.batch, self.how, self.epochs = options.batch, how, 0

    def epoch(self) -> float:
        started = time.perf_counter()
        self.epochs += 1
        generator = rng.torch_generator(0, "batches", round=self.epochs)
        order = torch.randperm(len(self.samples), generator=generator)
        for step, positions in enumerate(order.to(self.samples.rows.device).split(self.batch)):
            x, _ = self.samples.take(positions)
            if self.how != "none":
                numbers = rng.torch_generator(0, "augmentation", round=self.epochs, extra=step)
                augment_batch(x, self.how, numbers, self.samples.normalisation)
        return finished(x, started)


class Loaded:
    """The batches of an epoch from a DataLoader."""

    def __init__(self, options: Options, how: str, resident: Resident) -> None:
        rows, data = resident.spec.data.clients[0].train, resident.spec.data
        x = torch.from_numpy(np.ascontiguousarray(data.x[rows]))
        self.device = torch.device(options.device)
        self.loader = DataLoader(
            Images(x, torch.from_numpy(data.y[rows]), how),
            options.batch,
            shuffle=True,
            num_workers=options.workers,
            persistent_workers=options.workers > 0,
            pin_memory=self.device.type == "cuda",
        )

    def epoch(self) -> float:
        started = time.perf_counter()
        for batch, _ in self.loader:
            x = batch.to(self.device, non_blocking=True)
        return finished(x, started)


def main(options: Options) -> bool:
    torch.set_num_threads(1)
    batches = -(-options.samples // options.batch)
    rows: list[tuple[object, ...]] = []
    passed = True
    for how in options.augment:
        resident = Resident(options, how)
        loaded = Loaded(options, how, resident)
        turns = {"ours": resident.epoch, "theirs": loaded.epoch}
        times = take_turns(turns, options.epochs, warmup=1)  # the first one starts the workers
        ratios = [theirs / ours for ours, theirs in zip(*times.values(), strict=True)]
        passed &= median(ratios) >= options.limit
        speeds = (batches / median(column) for column in times.values())
        rows.append((how, *speeds, median(ratios), f"{min(ratios):.1f} to {max(ratios):.1f}"))
        del loaded
    show(
        f"{options.samples} images of {options.side}x{options.side}, batches of {options.batch}, "
        f"{options.device}, {options.epochs} epochs each",
        f"augment | flray, batches/s :.0f | DataLoader, {options.workers} workers :.0f"
        " | ratio :.1f | ratios from to",
        rows,
    )
    if not passed:
        print(f"a ratio is below {options.limit}")
    return passed
