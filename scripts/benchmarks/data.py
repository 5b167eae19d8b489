"""Batches per second: flray's resident samples beside a DataLoader with workers, same images and transforms, one run.

Both make the batches of one epoch over one client's training data, shuffled, augmented and
normalised, and do nothing with them. They take turns, epoch by epoch, so that whatever else the
machine does hits both; the ratio is the median of the epochs' ratios. The loader keeps its workers
between epochs and works on tensors, not on files. Exits with 1 if a ratio is below the limit.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flray import rng
from flray.config.loader import load
from flray.data.augment import augment_batch
from flray.data.types import DataSet, Domain
from flray.federation.building import build_spec
from flray.federation.worker.client_runner import ClientRunner
from flray.registry import register_dataset

MEAN, STD = (0.5, 0.45, 0.4), (0.25, 0.25, 0.25)


@register_dataset("bytes")
def random_bytes(root: Path, *, samples: int, side: int) -> DataSet:
    generator = np.random.default_rng(0)
    parts: list[Any] = []
    for n in (samples, 10):
        parts += [
            generator.integers(0, 256, (n, 3, side, side), dtype=np.uint8),
            np.arange(n, dtype=np.int64) % 10,
        ]
    return DataSet("bytes", (Domain("bytes", "random", *parts),), tuple("0123456789"), MEAN, STD)


class Images(Dataset[tuple[Tensor, int]]):
    """Images in memory with the transforms of one augmentation, as a training script would have them."""

    def __init__(self, x: Tensor, y: Tensor, how: str) -> None:
        from torchvision.transforms import (
            v2,
        )  # after flray, which makes it importable beside a torch without CUDA

        side = x.shape[-1]
        steps: list[Any] = {
            "none": [],
            "crop": [v2.RandomCrop(side, padding=4), v2.RandomHorizontalFlip()],
            "weak": [
                v2.RandomResizedCrop(side, (0.2, 1.0), antialias=False),
                v2.RandomHorizontalFlip(),
            ],
            "strong": [
                v2.RandomResizedCrop(side, (0.2, 1.0), antialias=False),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8),
                v2.RandomGrayscale(0.2),
            ],
        }[how]
        self.x, self.y = x, y
        self.transform = v2.Compose(
            [*steps, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
        )

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.x[index]), int(self.y[index])


class Resident:
    """The batches of a client's epoch as its turn makes them."""

    def __init__(self, options: argparse.Namespace, how: str) -> None:
        self.spec = build_spec(
            load(
                {
                    "experiment": {
                        "data": {"name": "bytes", "samples": options.samples, "side": options.side},
                        "model": "linear",
                        "algorithm": "local",
                        "local": {"augment": how, "batch_size": options.batch},
                    }
                }
            ).experiment
        )
        runner = ClientRunner(self.spec, torch.device(options.device), 1)
        self.samples = runner._resources.samples(self.spec.data.clients[0].train)
        self.batch, self.how, self.epochs = options.batch, how, 0

    def epoch(self) -> float:
        started = time.perf_counter()
        self.epochs += 1
        order = torch.randperm(
            len(self.samples), generator=rng.torch_generator(0, "batches", round=self.epochs)
        )
        for step, positions in enumerate(order.to(self.samples.rows.device).split(self.batch)):
            x, _ = self.samples.take(positions)
            if self.how != "none":
                augment_batch(
                    x,
                    self.how,
                    rng.torch_generator(0, "augmentation", round=self.epochs, extra=step),
                    self.samples.normalisation,
                )
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started


class Loaded:
    """The batches of an epoch from a DataLoader."""

    def __init__(self, options: argparse.Namespace, how: str, resident: Resident) -> None:
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
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--side", type=int, default=32, help="height and width of an image")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2, help="of the DataLoader")
    parser.add_argument("--epochs", type=int, default=7, help="measured epochs of each")
    parser.add_argument(
        "--augment",
        nargs="+",
        choices=["none", "crop", "weak", "strong"],
        default=["none", "crop", "weak", "strong"],
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float, default=3.0, help="least ratio")
    options = parser.parse_args()
    torch.set_num_threads(1)
    batches = -(-options.samples // options.batch)
    table = Table(
        "augment",
        "flray, batches/s",
        f"DataLoader, {options.workers} workers",
        "ratio",
        "ratios from to",
        title=f"{options.samples} images of {options.side}x{options.side}, batches of {options.batch}, "
        f"{options.device}, {options.epochs} epochs each",
    )
    passed = True
    for how in options.augment:
        resident = Resident(options, how)
        loaded = Loaded(options, how, resident)
        resident.epoch(), loaded.epoch()  # the first one starts the workers
        times = [(resident.epoch(), loaded.epoch()) for _ in range(options.epochs)]
        ratios = [theirs / ours for ours, theirs in times]
        ratio = statistics.median(ratios)
        passed &= ratio >= options.limit
        medians = (batches / statistics.median(column) for column in zip(*times, strict=True))
        table.add_row(
            how,
            *(f"{m:.0f}" for m in medians),
            f"{ratio:.1f}",
            f"{min(ratios):.1f} to {max(ratios):.1f}",
        )
        del loaded
    Console(width=110).print(table)
    if not passed:
        raise SystemExit(f"a ratio is below {options.limit}")


if __name__ == "__main__":
    main()
