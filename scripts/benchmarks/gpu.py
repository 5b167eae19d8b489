"""Images per second on one device: flray's inline executor beside a bare PyTorch loop, each technique on its own.

The samples are GENERATED: normal noise of 3x32x32 with labels that mean nothing, resident on the
device. Contestants take turns, round by round; a round is one pass of every client over its
samples, weights to the CPU and their mean included. Ratios are medians of the rounds' ratios: `of
bare` to the loop with the same technique (which has its clients one after another where flray
trains all in a step), `gain` to flray's plain float32. TFLOP/s counts multiplications and additions
of both passes.
"""

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import runner
import torch
from bare import CLASSES, SHAPE, OneProcess, work
from torch.utils.flop_counter import FlopCounterMode

from flray import models
from flray.errors import brief
from flray.federation.federation import Federation

PLAIN = "float32, contiguous"
TECHNIQUES: dict[str, dict[str, Any]] = {
    PLAIN: {"memory_format": "contiguous"},
    "channels_last": {},
    "bfloat16": {"precision": "bfloat16"},
    "compile": {"compile": True},
    "bfloat16 + compile": {"precision": "bfloat16", "compile": True},
    "many clients in a step": {"clients_per_step": 0},  # as many as there are, up to a limit
    "reduce-overhead": {"compile": "reduce-overhead"},
    "bfloat16 + reduce-overhead": {"precision": "bfloat16", "compile": "reduce-overhead"},
}
ROWS: dict[str, tuple[str, tuple[int, int], tuple[int, int]]] = {
    "resnet8": ("resnet8", (4, 6400), (4, 256)),
    "lenet": ("lenet", (4, 6400), (4, 256)),
    "1000 small clients": ("lenet", (1000, 64), (50, 64)),
    "resnet18": ("resnet18", (4, 1600), (2, 64)),
}
"""By name: network, and clients with samples of each on a GPU and on a CPU."""
MOST_TOGETHER = 50
"""Most clients in a step."""
ON_GPU_ONLY = ("reduce-overhead", "bfloat16 + reduce-overhead")
"""CUDA graphs; on a CPU the same as compile."""
Local = dict[str, Any]


@dataclass
class Options:
    device: str = runner.option("auto", choices=("auto", "cpu", "cuda"))
    rows: Sequence[str] = runner.option(tuple(ROWS), choices=tuple(ROWS))
    techniques: Sequence[str] | None = runner.option(
        None, "default: all that the device has", nargs="+", choices=tuple(TECHNIQUES)
    )
    batch: int = 64
    clients: int | None = runner.option(None, "default: the row's, fewer on a CPU", type=int)
    samples: int | None = runner.option(
        None, "per client; default: the row's, fewer on a CPU", type=int
    )
    rounds: int = runner.option(5, "measured rounds of each contestant")
    warmup: int = runner.option(2, "rounds before, in which compiling happens")
    threads: int = runner.option(1, "CPU threads")
    bits: str = runner.option("native", "of both contestants", choices=("native", "fast"))


class Bare(OneProcess):
    """One process with a technique, and nothing but PyTorch."""

    def __init__(self, options: Options, model: str, local: Local, device: torch.device) -> None:
        last = local.get("memory_format") != "contiguous"
        given = {"model": model, "cohort": options.clients, "lr": 0.01, "channels_last": last}
        super().__init__(work(options, **given), device)
        self.device, self.lowered = device, local.get("precision") == "bfloat16"
        self.run: Any = self.model
        if mode := local.get("compile", False):
            mode = "default" if mode is True else mode
            self.run = torch.compile(self.model, dynamic=False, mode=mode)

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.lowered):
            found: torch.Tensor = self.run(x)
        return found.float()


def federation(options: Options, model: str, local: Local) -> Federation:
    block = None
    if "clients_per_step" in local:
        block = min(options.clients or 0, MOST_TOGETHER)
        local = {**local, "clients_per_step": block}
    resources = {
        "executor": "inline",
        "gpus_per_actor": 0 if options.device == "cpu" else 1,
        "cpus_per_actor": options.threads,
        "bits": options.bits,
    }
    return runner.inline(
        runner.experiment(
            options.clients or 0,
            options.samples or 0,
            model=model,
            aggregation={"block": block},
            local={"batch_size": options.batch, "lr": 0.01, **local},
            resources=resources,
        )
    )


def flops(model: str) -> int:
    """Return the operations of one image's forward and backward pass."""
    network = models.build(model, SHAPE, CLASSES, {}, 0)
    with FlopCounterMode(display=False) as counter:
        network(torch.randn(2, *SHAPE)).sum().backward()
    return int(counter.get_total_flops()) // 2


def measure(given: Options, name_of_row: str, device: torch.device) -> list[dict[str, Any]]:
    """Return a row of the table for each technique."""
    on_gpu = device.type == "cuda"
    model, *sizes = ROWS[name_of_row]
    clients, samples = sizes[0] if on_gpu else sizes[1]
    clients, samples = given.clients or clients, given.samples or samples
    options = replace(given, clients=clients, samples=samples)
    names = [name for name in TECHNIQUES if on_gpu or name not in ON_GPU_ONLY]
    turns: dict[tuple[str, str], Any] = {}
    for name in [name for name in names if name in (options.techniques or names)]:
        pair: dict[tuple[str, str], Any] = {
            (name, "flray"): runner.Steps(federation(options, model, TECHNIQUES[name])),
            (name, "bare"): Bare(options, model, TECHNIQUES[name], device).round,
        }
        try:  # a table costs minutes, and one technique that fails keeps none of the others from it
            runner.take_turns(pair, 0, 1)
        except Exception as error:
            print(f"{name_of_row}, {name}: {brief(error)}", file=sys.stderr)
            continue
        turns |= pair
    times = runner.take_turns(turns, options.rounds, options.warmup)
    images, operations = clients * samples, flops(model)
    rows = []
    for name in dict.fromkeys(name for name, _ in turns):
        turns[name, "flray"].federation.close()
        ours, bare = times[name, "flray"], times[name, "bare"]
        row = {
            "row": name_of_row,
            "clients": f"{clients} x {samples}",
            "technique": name,
            "flray": images / median(ours),
            "bare": images / median(bare),
            "of_bare": runner.ratio(bare, ours),
            "tflops": images / median(ours) * operations / 1e12,
        }
        if (PLAIN, "flray") in times:
            row["gain"] = runner.ratio(times[PLAIN, "flray"], ours)
        rows.append(row)
    return rows


def tell(rows: list[dict[str, Any]], where: str, options: Options) -> None:
    """Show the table of one row's techniques."""
    runner.show(
        f"generated 3x32x32 samples {where}: batch {options.batch}, {options.rounds} rounds",
        "row | clients | technique | flray images/s :,.0f | bare images/s :,.0f | of bare :.3f"
        " | gain :.2f | TFLOP/s :.3f",
        [
            (
                *(row[key] for key in ("row", "clients", "technique", "flray", "bare", "of_bare")),
                row.get("gain"),
                row["tflops"],
            )
            for row in rows
        ],
    )


def main(options: Options) -> None:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU here; --device cpu runs a small version")
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = options.device == "cuda"
    device = torch.device("cuda:0" if on_gpu else "cpu")
    torch.set_num_threads(options.threads)
    name = torch.cuda.get_device_name(device) if on_gpu else f"CPU {platform.machine()}"
    for name_of_row in options.rows:
        found = measure(options, name_of_row, device)
        tell(found, f"on {name}, {options.threads} thread(s)", options)
