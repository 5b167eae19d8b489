"""Steps that are recorded once and repeated have the bits of the steps as they are written.

As CUDA's graphs do it: the operators of a step with the memory that they read and write. A later
step of any client of the stage starts the same operators on its own memory, and nothing of the
method's Python runs. A lane is a process's networks on the device, with recordings of its own; clients are dealt to
the lanes in turn. ``python -m tests.accelerator.test_recorded < METHODS`` reads names of methods as JSON, and prints a
line of JSON for each.
"""

import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from flray.algorithms.base import Algorithm, Batch, Client
from flray.federation import messages
from flray.federation.worker import client_runner
from tests.accelerator import device
from tests.accelerator.cases import NAMES, Case, case, experiment
from tests.accelerator.device import DEVICE, AccelTensor, Counts, pretending
from tests.accelerator.run_cases import CPU, run
from tests.helpers import built, ended

map_only: Any = torch.utils._pytree.tree_map_only
Step = Callable[[Client, Batch, torch.optim.Optimizer], None]
Decides = Mapping[str, Callable[[Client], Any]]
DECIDES: Decides = {"copa": lambda client: client.id, "fedco2": lambda client: client.id}
"""By method: what of a client its Python decides by, so that only clients alike share a recording.

The peers' classifiers leave out the client's own one by its number. APFL's alpha, a number in the
client's state, counts for every method (`Found.numbers`).
"""
LANES = 2, 3, 8
"""Fewer than the three clients, as many, and more."""
ONE = client_runner.ClientRunner


class Place(NamedTuple):
    """A tensor's place in memory."""

    memory: int
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def place_of(held: Tensor) -> Place:
    memory = held.untyped_storage()._cdata
    return Place(memory, held.storage_offset(), tuple(held.size()), held.stride(), held.dtype)


class Found:
    """What a step can read of a client: its tensors and numbers by their path, and the containers that hold them."""

    def __init__(self, client: Client, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.numbers: dict[str, Any] = {}
        self.containers: dict[str, Any] = {}
        self._seen: set[int] = set()
        frozen = client.resident.frozen_copies
        self._walk("client", vars(client))
        self._walk("model", client.resident.entries)
        self._walk("frozen", {role: dict(model.state_dict()) for role, model in frozen.items()})
        self._walk("batch", {"x": batch.x, "y": batch.y})
        self._walk("optimizer", optimizer)

    def _walk(self, path: str, value: Any) -> None:
        if isinstance(value, AccelTensor):
            self.tensors[path] = value.held
        elif isinstance(value, bool | int | float | str):
            if path.startswith(("client/scratch", "client/state", "client/message", "optimizer")):
                self.numbers[path] = value
        elif id(value) not in self._seen:
            self._seen.add(id(value))
            if isinstance(value, torch.optim.Optimizer):
                weights = [w for group in value.param_groups for w in group["params"]]
                memory = [value.state.get(w, {}) for w in weights]
                value = {"memory": memory, "groups": value.param_groups}
            elif isinstance(value, nn.Module):
                value = dict(value.state_dict(keep_vars=True))
            if isinstance(value, dict | list | tuple):
                self.containers[path] = value
                items = value.items() if isinstance(value, dict) else enumerate(value)
                for key, item in items:
                    self._walk(f"{path}/{key}", item)

    def put(self, path: str, tensor: Tensor) -> None:
        """Put another tensor in the place of one."""
        parent, _, key = path.rpartition("/")
        container = self.containers[parent]
        container[int(key) if isinstance(container, list) else key] = AccelTensor(tensor)


class Recording:
    """The operators of one step."""

    def __init__(self, step: Step, arguments: Any, counts: Counts) -> None:
        client, before = arguments[0], Found(*arguments)
        self._calls: list[tuple[Any, Any, Any, list[Place]]] = []
        self._alive: dict[int, Any] = {}
        self._leaves = {path: place_of(held) for path, held in before.tensors.items()}
        waits, copies, steps = counts.waits.copy(), counts.copies.copy(), client.steps
        device.watchers.append(self._note)
        try:
            step(*arguments)
        finally:
            device.watchers.pop()
        self._steps, after = client.steps - steps, Found(*arguments)
        self.unlike = {*(counts.waits - waits), *(counts.copies - copies)}
        self.unlike |= {p for p, n in after.numbers.items() if before.numbers.get(p) != n}
        places = {path: place_of(held) for path, held in after.tensors.items()}
        self._new = {path: at for path, at in places.items() if self._leaves.get(path) != at}

    def _note(self, func: Any, args: Any, options: Any, result: Any) -> None:
        given = map_only(Tensor, self._kept, (list(args), dict(options)))
        made = [self._kept(one) for one in device._leaves(result) if isinstance(one, Tensor)]
        self._calls.append((func, *given, made))

    def _kept(self, held: Tensor) -> Place:
        """Return a tensor's place, whose memory is not given to another while there is a recording."""
        place = place_of(held)
        self._alive.setdefault(place.memory, held.untyped_storage())
        return place

    def repeat(self, found: Found, client: Client) -> bool:
        """Do the step on what was found of a client; return whether it can be done."""
        if found.tensors.keys() != self._leaves.keys():
            return False
        memory: dict[int, Any] = {}
        for path, place in self._leaves.items():
            held = found.tensors[path]
            mine = memory.setdefault(place.memory, held.untyped_storage())
            here = place_of(held)
            if here[1:] != place[1:] or mine._cdata != here.memory:
                return False  # another form, or one memory when it was recorded, and two here
        mine = {place.memory for place in self._leaves.values()}

        def tensor(place: Place) -> Tensor:
            storage = memory.get(place.memory, self._alive[place.memory])
            made = torch.empty(0, dtype=place.dtype)
            return made.set_(storage, place.offset, place.size, place.stride)

        for func, args, options, made in self._calls:
            leaf = {"is_leaf": lambda one: isinstance(one, Place)}
            given, named = map_only(Place, tensor, (args, options), **leaf)
            leaves = device._leaves(func(*given, **named))
            result = [one for one in leaves if isinstance(one, Tensor)]
            for place, one in zip(made, result, strict=True):
                if place.memory not in mine:
                    memory[place.memory] = one.untyped_storage()
        for path, place in self._new.items():
            found.put(path, tensor(place))
        client.steps += self._steps
        return True


class Recorder:
    """A method's step: as written for the first whole batch of its kind, recorded for the second, then repeated."""

    def __init__(self, algorithm: Algorithm, decides: Any, counts: Counts) -> None:
        self._step, self._decides, self._counts = algorithm.step, decides, counts
        self._met: Counter[Any] = Counter()
        self._recordings: dict[Any, Recording] = {}
        self.repeated: Counter[str] = Counter()
        self.unlike: set[str] = set()

    def __call__(self, client: Client, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        found = Found(client, batch, optimizer)
        place = client.round, client.stage_index, batch.phase.tag, id(client.resident)
        kind = (*place, tuple(batch.x.shape), batch.last_epoch, self._decides(client))
        kind = (*kind, tuple(sorted(found.numbers.items())))
        self._met[kind] += 1
        recording = self._recordings.get(kind)
        with torch.no_grad():
            done = recording is not None and recording.repeat(found, client)
        self.repeated["repeated" if done else "written"] += 1
        if done:
            return
        if recording is None and self._met[kind] == 2:
            made = Recording(self._step, (client, batch, optimizer), self._counts)
            self.unlike |= made.unlike
            if not made.unlike:
                self._recordings[kind] = made
        else:
            self._step(client, batch, optimizer)


class Lanes:
    """Several lanes in place of an executor's one."""

    def __init__(self, count: int, *arguments: Any) -> None:
        self._lanes = itertools.cycle([ONE(*arguments) for _ in range(count)])
        self.device: torch.device = arguments[1]

    def run_block(self, block: messages.TaskBlock) -> Any:
        return next(self._lanes).run_block(block)


@cache
def on_the_cpu(name: str) -> tuple[Case, str]:
    """Return a method's experiment, and the digest of what it learns as it is written."""
    case_of = case(name, experiment(name, local={"epochs": 3}))
    return case_of, run(built(case_of["experiment"]), CPU, CPU, case_of)[0]


def run_method(name: str, decides: Decides, lanes: int = 1) -> dict[str, Any]:
    """Return what a method learnt without and with recorded steps, and how many were repeated."""
    case_of, wanted = on_the_cpu(name)
    spec = built(case_of["experiment"])
    with pretending() as counts, patch.object(client_runner, "ClientRunner", partial(Lanes, lanes)):
        recorder = Recorder(spec.algorithm, decides.get(name, lambda client: None), counts)
        vars(spec.algorithm)["step"] = recorder
        learnt, _ = run(spec, DEVICE, DEVICE, case_of)
    found = {"name": name, "same": learnt == wanted, "unlike": sorted(recorder.unlike)}
    return {**found, **recorder.repeated}


def main(names: Sequence[str]) -> None:
    """Run methods, those of `DECIDES` also as if all their clients shared recordings."""
    torch.set_num_threads(1)
    for name in names:
        found = run_method(name, DECIDES)
        alike = run_method(name, {})["same"] if name in DECIDES else None
        lanes = [run_method(name, DECIDES, count) for count in LANES]
        print(json.dumps({**found, "if alike": alike, "lanes": lanes}), flush=True)


NOT_RECORDED = {"fedmatch": "its strong augmentation sends each step's draws to the device"}
"""By method: why none of its training steps can be recorded."""

TOO_FEW_STEPS = {"fedalt", "fedfomo", "lgmix", "perfedavg"}
"""Methods of whose steps no lane has a third one of a kind."""

ALSO_WRITTEN = {
    "apfl": ["client/state/alpha"],  # a client's first step computes it on the host
    "lgmix": ["client/scratch/epoch"],  # an epoch's first step begins new sums
}
"""By method: which number of a client changes in some of its steps, which are therefore not recorded."""


@pytest.mark.slow
def test_every_method_has_its_bits_by_recorded_steps() -> None:
    done = ended("-m", "tests.accelerator.test_recorded", input=json.dumps(NAMES), timeout=900)
    found = {one["name"]: one for one in map(json.loads, done.stdout.splitlines())}
    lanes = [lane for one in found.values() for lane in one["lanes"]]
    assert [one for one in (*found.values(), *lanes) if not one["same"]] == []
    assert {name for name, one in found.items() if not one.get("repeated")} == {*NOT_RECORDED}
    without = {one["name"] for one in lanes if not one.get("repeated")}
    assert without == {*NOT_RECORDED, *TOO_FEW_STEPS}
    numbers = {n: [x for x in one["unlike"] if x.startswith("client/")] for n, one in found.items()}
    assert {n: x for n, x in numbers.items() if x} == ALSO_WRITTEN
    # What of a client Python decides by is needed: without it the bits are others.
    assert [name for name, one in found.items() if one["if alike"]] == []


if __name__ == "__main__":
    main(json.load(sys.stdin))
