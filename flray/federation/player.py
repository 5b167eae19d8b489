"""Plays turns in one process: (turn, messages, state) -> (outcome, reply, new state), a pure function.

Nothing of a turn is left behind that the next one could read: every turn sets all parameters and buffers.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from flray import keys, registry, trees
from flray.algorithms.client import Bench, Client
from flray.algorithms.samples import Samples
from flray.federation.executor import Failure, Outcome, Turn, evidence_arrays, split_small
from flray.federation.memory import keep_freed_memory
from flray.federation.world import World
from flray.trees import Packed

BLOCK = 2048
"""Samples of the common test set in one evaluation turn; fixed, so that the bits do not depend on the workers."""


class Player:
    """The clients' side in one process.

    Parameters
    ----------
    world : World
        What is played.
    device : torch.device
        Where models and data live.
    threads : int
        Torch threads; set for the whole process.
    """

    def __init__(self, world: World, device: torch.device, threads: int) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        for kind, entries in world.components.items():
            registry.ALL[kind].add(entries)
        self.world, self.device = world, device
        self.task = world.task
        self._process = psutil.Process()
        self._benches: dict[str, Bench] = {}
        self._common: tuple[str, dict[str, Any]] = ("", {})
        local = world.config.local
        self._dtype = torch.float64 if local.precision == "float64" else torch.float32
        data = world.data
        images = len(data.shape) == 3
        self._format = torch.channels_last if images and local.memory_format == "channels_last" \
            else torch.contiguous_format
        self._x = torch.from_numpy(data.x).to(device)
        self._y = torch.from_numpy(data.y).to(device)
        self._public = torch.from_numpy(data.public).to(device) if data.public is not None else None
        means, deviations = (data.mean, data.std) if world.algorithm.normalise else ((0.0,), (1.0,))
        std = torch.tensor(deviations, dtype=torch.float64).view(-1, 1, 1)
        mean = torch.tensor(means, dtype=torch.float64).view(-1, 1, 1)
        self._scale = (1.0 / (255.0 * std)).to(device, self._dtype)
        self._shift = (-mean / std).to(device, self._dtype)

    def play(self, turn: Turn, common: Packed, private: Packed | None,
             state: Packed | None) -> tuple[Outcome, Packed | None, Packed | None]:
        """Play a turn; an exception of the method or the model becomes a failure in the outcome."""
        started = time.perf_counter()
        try:
            cuda = [self.device] if self.device.type == "cuda" else []
            with torch.random.fork_rng(devices=cuda):
                torch.manual_seed(keys.key(self.world.config.seed, "dropout", round=turn.round, client=turn.client,
                                           extra=f"{turn.kind}/{turn.stage.name}/{turn.stage.index}"))
                if turn.kind == "stage":
                    return self._stage(turn, common, private, state, started)
                evidence = self._global(turn, common) if turn.kind == "global" \
                    else self._personal(turn, common, private, state)
            return Outcome(turn.client, evidence=evidence, seconds=time.perf_counter() - started,
                           resident=self._process.memory_info().rss), None, None
        except Exception as error:
            return Outcome(turn.client, failure=describe(error), seconds=time.perf_counter() - started), None, None

    def bench(self, architecture: str) -> Bench:
        """Return this process's model of an architecture."""
        if architecture not in self._benches:
            model = self.world.build(architecture).to(self.device)
            model = model.to(memory_format=self._format)  # type: ignore[call-overload]
            buffers_local = self.world.config.aggregation.buffers == "local"
            self._benches[architecture] = Bench(model, self.world.algorithm.shared, buffers_local)
        return self._benches[architecture]

    def _stage(self, turn: Turn, common: Packed, private: Packed | None, state: Packed | None,
               started: float) -> tuple[Outcome, Packed | None, Packed | None]:
        client = self._client(turn, common, private, state)
        reply = getattr(self.world.algorithm, turn.stage.name)(client)
        client.check_received()
        if client.bench.personal:
            client.state["personal"] = client.weights(client.bench.personal)
        small, large = split_small(reply)
        packed_small = trees.pack(small)
        bulk = trees.pack(large) if large else None
        kept = trees.pack(client.state) if client.state else None
        outcome = Outcome(
            client=turn.client, small=packed_small, entries=tuple(large), stateful=kept is not None,
            metrics={"loss": client.mean_loss, "steps": float(client.steps), **client.metrics},
            up=packed_small.nbytes + (bulk.nbytes if bulk is not None else 0),
            seconds=time.perf_counter() - started, resident=self._process.memory_info().rss)
        return outcome, bulk, kept

    def _client(self, turn: Turn, common: Packed, private: Packed | None, state: Packed | None) -> Client:
        data = self.world.data
        rows = data.clients[turn.client]
        message = {**self._unpack(turn, common), **(trees.unpack(private) if private is not None else {})}
        client = Client(
            id=turn.client, round=turn.round, stage_index=turn.stage.index, config=self.world.config,
            bench=self.bench(turn.architecture), task=self.task, message=message,
            state=trees.to_device(trees.unpack(state), self.device) if state is not None else {},
            train=self._samples(rows.train), validation=self._samples(rows.val), public=self._public_samples(),
            num_classes=data.num_classes, work=turn.work, device=self.device)
        if state is None:
            self.world.algorithm.setup(client)
        return client

    def _unpack(self, turn: Turn, common: Packed) -> dict[str, Any]:
        """Return the common message on the device, moved there once per stage rather than once per client."""
        if not turn.token or self._common[0] != turn.token:
            self._common = (turn.token, trees.to_device(trees.unpack(common), self.device))
        return self._common[1]

    def _samples(self, rows: Any) -> Samples:
        return Samples(self._x, self._y, torch.from_numpy(rows).to(self.device), self._prepare)

    def _public_samples(self) -> Samples | None:
        if self._public is None:
            return None
        return Samples(self._public, None, torch.arange(len(self._public), device=self.device), self._prepare)

    def _prepare(self, raw: Tensor) -> Tensor:
        layout = self._format if raw.dim() == 4 else torch.contiguous_format
        if raw.dtype != torch.uint8:
            return raw.to(dtype=self._dtype, memory_format=layout)
        return raw.to(dtype=self._dtype, memory_format=layout).mul_(self._scale).add_(self._shift)

    def _global(self, turn: Turn, common: Packed) -> dict[str, Any]:
        bench = self.bench(turn.architecture)
        with torch.no_grad():
            for name, value in self._unpack(turn, common)["weights"].items():
                bench.entries[name].copy_(value)
        rows = self.world.data.test[turn.block * BLOCK:(turn.block + 1) * BLOCK]
        return {"common": self._evidence(bench.model.eval(), rows)}

    def _personal(self, turn: Turn, common: Packed, private: Packed | None, state: Packed | None) -> dict[str, Any]:
        algorithm, data = self.world.algorithm, self.world.data
        client = self._client(turn, common, private, state)
        algorithm.receive(client)
        client.check_received()
        predictor = algorithm.predictor(client, "personal")
        if self.world.config.evaluation.others:
            return {"all": self._evidence(predictor, data.test)}
        return {"local": self._evidence(predictor, data.clients[turn.client].test)}

    @torch.no_grad()
    def _evidence(self, predictor: Any, rows: Any) -> dict[str, Any]:
        samples = self._samples(rows)
        return evidence_arrays([self.task.evidence(predictor(x), y)
                                for x, y in samples.in_order(self.world.config.evaluation.batch_size)])


def describe(error: BaseException) -> Failure:
    """Return what went wrong and where: the innermost line outside of installed libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and Path(f.filename).name != "player.py"
           and not f.filename.startswith(sys.base_prefix)]
    frame = (own or list(frames))[-1] if frames else None
    return Failure(
        what=f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0],
        where=f"{frame.filename}:{frame.lineno}" if frame else "",
        trace="".join(traceback.format_exception(error)))
