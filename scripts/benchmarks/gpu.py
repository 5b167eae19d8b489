"""Images per second on one device: flray's inline executor beside a bare PyTorch loop, each technique on its own.

The samples are GENERATED: normal noise of 3x32x32 with labels that mean nothing, resident on the
device. Contestants take turns, round by round; a round is one pass of every client over its
samples, weights to the CPU and their mean included. Ratios are medians of the rounds' ratios: `of
bare` to the loop with the same technique (which has its clients one after another where flray
trains all in a step), `gain` to flray's plain float32. TFLOP/s counts multiplications and additions
of both passes; --peak names the chip's limit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from bare import average, build
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.federation import Federation, inline_federation

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
ON_GPU_ONLY = (
    "reduce-overhead",
    "bfloat16 + reduce-overhead",
)  # CUDA graphs; on a CPU the same as compile
Local = dict[str, Any]


class Bare:
    """One process, everything resident, nothing but PyTorch."""

    def __init__(
        self, options: argparse.Namespace, model: str, local: Local, device: torch.device
    ) -> None:
        self.batch, self.device, self.lowered = (
            options.batch,
            device,
            local.get("precision") == "bfloat16",
        )
        layout = (
            torch.contiguous_format
            if local.get("memory_format") == "contiguous"
            else torch.channels_last
        )
        spec = {"model": model, "shape": [3, 32, 32], "classes": 10, "channels_last": False}
        self.model = build(spec).to(device)
        self.model.to(memory_format=layout)  # type: ignore[call-overload]
        mode = local.get("compile", False)
        self.run: Any = (
            self.model
            if not mode
            else torch.compile(self.model, dynamic=False, mode="default" if mode is True else mode)
        )
        shape = (options.clients, options.samples, 3, 32, 32)
        self.x = [x.to(memory_format=layout) for x in torch.randn(shape, device=device)]
        self.y = torch.randint(10, shape[:2], device=device)
        self.weights = {name: value.cpu() for name, value in self.model.state_dict().items()}

    def round(self) -> float:
        started = time.perf_counter()
        self.weights = average([self.train(x, y) for x, y in zip(self.x, self.y, strict=True)])
        return time.perf_counter() - started

    def train(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self.model.load_state_dict(self.weights)
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        for rows in torch.randperm(len(y)).to(self.device).split(self.batch):
            optimizer.zero_grad(set_to_none=True)
            with (
                torch.autocast(self.device.type, torch.bfloat16)
                if self.lowered
                else contextlib.nullcontext()
            ):
                outputs = self.run(x[rows])
            F.cross_entropy(outputs.float(), y[rows]).backward()
            optimizer.step()
        return {name: value.cpu().clone() for name, value in self.model.state_dict().items()}


def federation(options: argparse.Namespace, model: str, local: Local) -> Federation:
    block = None
    if "clients_per_step" in local:
        block = min(options.clients, MOST_TOGETHER)
        local = {**local, "clients_per_step": block}
    return inline_federation(
        build_spec(
            load(
                {
                    "experiment": {
                        "rounds": 10**6,
                        "algorithm": "fedavg",
                        "model": model,
                        "evaluation": {"every": 10**6},
                        "tracking": {"uri": None},
                        "aggregation": {"block": block},
                        "data": {"name": "random", "samples": options.clients * options.samples},
                        "partition": {"name": "iid", "clients": options.clients},
                        "local": {"batch_size": options.batch, "lr": 0.01, **local},
                        "resources": {
                            "executor": "inline",
                            "gpus_per_actor": 0 if options.device == "cpu" else 1,
                            "cpus_per_actor": options.threads,
                        },
                    }
                }
            ).experiment
        ),
        print,
    )


def flops(model: str) -> int:
    """Return the operations of one image's forward and backward pass."""
    network: nn.Module = build(
        {"model": model, "shape": [3, 32, 32], "classes": 10, "channels_last": False}
    )
    with FlopCounterMode(display=False) as counter:
        network(torch.randn(2, 3, 32, 32)).sum().backward()
    return int(counter.get_total_flops()) // 2


def measure(
    given: argparse.Namespace, name_of_row: str, device: torch.device
) -> list[dict[str, Any]]:
    model, on_gpu, on_cpu = ROWS[name_of_row]
    clients, samples = on_gpu if device.type == "cuda" else on_cpu
    options = argparse.Namespace(
        **{**vars(given), "clients": given.clients or clients, "samples": given.samples or samples}
    )
    names = [
        name for name in TECHNIQUES if options.techniques is None or name in options.techniques
    ]
    names = [name for name in names if device.type == "cuda" or name not in ON_GPU_ONLY]
    ours = {name: federation(options, model, TECHNIQUES[name]) for name in names}
    bare = {name: Bare(options, model, TECHNIQUES[name], device) for name in names}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for number in range(options.warmup + options.rounds):
        for name in names:
            pair = ours[name].step().metrics["time/round"], bare[name].round()
            if number >= options.warmup:
                times[name].append(pair)
    for one in ours.values():
        one.close()
    images, work = options.clients * options.samples, flops(model)
    rows = []
    for name in names:
        mine, theirs = zip(*times[name], strict=True)
        row = {
            "row": name_of_row,
            "model": model,
            "clients": options.clients,
            "samples": options.samples,
            "technique": name,
            "flray": images / statistics.median(mine),
            "bare": images / statistics.median(theirs),
            "of_bare": statistics.median(b / a for a, b in times[name]),
            "seconds": mine,
            "bare_seconds": theirs,
        }
        row["tflops"] = row["flray"] * work / 1e12
        if PLAIN in times:
            row["gain"] = statistics.median(
                p / a for (p, _), (a, _) in zip(times[PLAIN], times[name], strict=True)
            )
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument(
        "--techniques", nargs="+", choices=list(TECHNIQUES), help="default: all that the device has"
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--clients", type=int, help="default: the row's, fewer on a CPU")
    parser.add_argument(
        "--samples", type=int, help="per client; default: the row's, fewer on a CPU"
    )
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds of each contestant")
    parser.add_argument(
        "--warmup", type=int, default=2, help="rounds before, in which compiling happens"
    )
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument(
        "--peak", type=float, help="the chip's limit in TFLOP/s, to print the share reached"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch sees no GPU here; --device cpu runs a small version")
    if options.device == "auto":
        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device("cuda:0" if options.device == "cuda" else "cpu")
    torch.set_num_threads(options.threads)
    name = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"
    )
    title = (
        f"generated 3x32x32 samples on {name}, {options.threads} thread(s): batch {options.batch}, "
        f"{options.rounds} rounds"
    )
    table = Table(
        "row",
        "clients",
        "technique",
        "flray images/s",
        "bare images/s",
        "of bare",
        "gain",
        "TFLOP/s",
        title=title,
    )
    rows = [row for name_of_row in options.rows for row in measure(options, name_of_row, device)]
    for row in rows:
        share = f" ({row['tflops'] / options.peak:.1%})" if options.peak else ""
        table.add_row(
            row["row"],
            f"{row['clients']} x {row['samples']}",
            row["technique"],
            f"{row['flray']:,.0f}",
            f"{row['bare']:,.0f}",
            f"{row['of_bare']:.3f}",
            f"{row['gain']:.2f}" if "gain" in row else "",
            f"{row['tflops']:.3f}{share}",
        )
    Console(width=120).print(table)
    if options.json:
        settings = {k: v for k, v in vars(options).items() if k != "json"}
        options.json.write_text(
            json.dumps(
                {
                    "data": "generated",
                    "device": name,
                    "torch": torch.__version__,
                    "options": settings,
                    "rows": rows,
                },
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
