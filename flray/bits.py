"""Bitwise reproducibility across CPUs: control and identify the libraries' choice of instructions.

torch, oneDNN, MKL, numpy and OpenBLAS each detect the CPU when loaded or first used, and sum in
another order with wider instructions. ``resources.bits: portable`` restricts them all to AVX2, and
MKL to the instructions of every x86-64 CPU. Environment variables do this; they must be set before a
process loads the libraries.
"""

import hashlib
import math
import os
import platform
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from flray.config.experiment import Experiment
from flray.errors import ConfigError, FlrayError

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    # The only branch of MKL that is the same on Intel's and on others' CPUs; elsewhere AVX2 means
    # the CPU's own.
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",  # the thread count determines a product's blocking, and the CPU the count
    # All that is above AVX2, by the names of numpy 2.4 and by those of numpy before it; it knows no
    # others' names.
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL",
    "NPY_ENABLE_CPU_FEATURES": "",  # numpy does not start with both
}
"""Environment variables of a process with portable bits, set before it starts."""

RECORDED = {
    ("2.13.0", "2.4.6"): {
        "torch": "8982b201fd30",
        "mkl": "688098c2ff4d",
        "onednn": "5ba020dbffac",
        "numpy": "ed928420d242",
        "openblas": "ce1c9690c05d",
        "libm": "508203afac69",
    }
}
"""Digests of `kinds` with `VARIABLES`, by the versions of torch and numpy."""

SETTING = "experiment.resources.bits"
_NUMPYS = {
    "sqrt": "sqrt",
    "log": "log",
    "log2": "log2",
    "log10": "log10",
    "tan": "tan",
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
}
"""Functions of torch that MKL's branch for every CPU begins with `rcpps` or `rsqrtps`, and numpy's names for them.

Those instructions approximate, and each maker of CPUs chooses how.
"""


class StartAgainError(FlrayError):
    """The process started without `VARIABLES`; the command line restarts itself with them."""


def require(experiment: Experiment) -> None:
    """Refuse to compute in this process unless its bits are those the experiment requires.

    Raises
    ------
    StartAgainError
        If the environment lacks `VARIABLES`.
    ConfigError
        If this CPU, or another setting, cannot have portable bits.
    """
    if experiment.resources.bits != "portable":
        return
    if experiment.local.compile:
        why = "resources.bits: portable needs false, for a compiler uses all that the CPU has"
        raise ConfigError("experiment.local.compile", str(experiment.local.compile).lower(), why)
    if platform.machine() != "x86_64" or not {"avx2", "fma"} <= _flags():
        why = f"this CPU ({platform.machine()}) is not an x86-64 one with AVX2 and FMA; use native"
        raise ConfigError(SETTING, "portable", why)
    if _lacking():
        raise StartAgainError(
            f"{SETTING}: found portable, and this process began without what that needs; call "
            "flray.portable() in a new Python before anything imports numpy or torch"
        )
    other = _other(RECORDED.get(versions(), kinds()))
    if other:
        raise ConfigError(
            SETTING,
            "portable",
            f"in this process {', '.join(other)} compute other bits than portable ones: loaded before the environment "
            "was set, or unknown here; start anew, or use native",
        )
    _leave_approximations()


def prepare(experiment: Experiment) -> None:
    """Set `VARIABLES` for a command, if the experiment requires them, while nothing has chosen instructions yet."""
    if experiment.resources.bits == "portable" and not {"numpy", "torch"} & sys.modules.keys():
        portable()


def portable() -> dict[str, str]:
    """Make this process compute portable bits; call it before anything imports numpy or torch.

    Returns
    -------
    dict of str to str
        The variables that were set. If you start Ray yourself, pass them on:
        ``ray.init(runtime_env={"env_vars": ...})``.

    Raises
    ------
    FlrayError
        If one of them was imported before, without these variables.
    """
    loaded = [name for name in ("numpy", "torch") if name in sys.modules]
    if loaded and _lacking():
        raise FlrayError(
            f"flray.portable(): found {' and '.join(loaded)} imported, with instructions chosen; call it first of all, "
            "in a new Python"
        )
    os.environ.update(VARIABLES)
    return dict(VARIABLES)


def start_again() -> NoReturn:
    """Replace this process by one with the same command line and `VARIABLES`."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **VARIABLES})


def problem(experiment: Experiment) -> str:
    """Return why this process cannot compute for an experiment, in one line; empty if it can."""
    try:
        require(experiment)
    except StartAgainError:
        return (
            f"{SETTING}: found portable, and Ray's processes began without what it needs; let flray start or join Ray, "
            "or give ray.init(runtime_env={'env_vars': flray.portable()})"
        )
    except FlrayError as error:
        return str(error)
    return ""


def variables(experiment: Experiment) -> dict[str, str]:
    """Return the environment variables that all processes of an experiment need."""
    return dict(VARIABLES) if experiment.resources.bits == "portable" else {}


def identity(setting: str = "native") -> dict[str, Any]:
    """Return a run's record of its CPU: its name for people, the libraries' bits for a resume.

    Parameters
    ----------
    setting : str
        The run's ``resources.bits``.
    """
    import torch

    return {
        "bits": setting,
        "machine": platform.machine(),
        "model": _model(),
        "kinds": kinds(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }


def check_same(where: object, noted: Mapping[str, Any]) -> str:
    """Describe how this process's bits differ from those a run started with; empty if they do not.

    Parameters
    ----------
    where : object
        The run's folder.
    noted : mapping
        Its ``run.json``. One without a CPU record never differs; neither does one of other versions
        of the libraries, whose bits say nothing about the CPU.
    """
    began, known = noted.get("cpu") or {}, noted.get("versions", {})
    there = tuple(known.get(name, "").partition("+")[0] for name in ("torch", "numpy"))
    if not isinstance(began.get("kinds"), Mapping) or there != versions():
        return ""
    other = _other(began["kinds"])
    if not other:
        return ""
    here = identity()
    return (
        f"{where} began on {began.get('model')} ({began.get('capability')}), and here, on {here['model']} "
        f"({here['capability']}), {', '.join(other)} compute other last bits"
    )


@cache
def _leave_approximations() -> Any:
    """Take the functions in `_NUMPYS` from numpy, as long as the returned library lives.

    The logarithm of float32 is MKL's: it approximates nothing.
    """
    import numpy as np
    import torch

    library = torch.library.Library("aten", "IMPL")

    def replace(name: str) -> None:
        function = getattr(np, _NUMPYS[name])
        kinds = (torch.float64,) if name == "log" else (torch.float32, torch.float64)

        def compute(values: Any) -> Any:
            if values.dtype in kinds:
                return torch.from_numpy(np.asarray(function(values.detach().numpy())))
            exact = not values.is_floating_point() and not values.is_complex()
            kind = torch.get_default_dtype() if exact else values.dtype
            made = torch.empty_like(values, dtype=kind)
            return getattr(torch.ops.aten, name).out(values, out=made)

        library.impl(name, compute, "CPU")
        library.impl(f"{name}_", lambda values: values.copy_(compute(values)), "CPU")

    with warnings.catch_warnings(
        action="ignore"
    ):  # torch's, of what is meant: it had such functions
        for name in _NUMPYS:
            replace(name)
    return library


@cache
def kinds() -> dict[str, str]:
    """Return by library a digest of small sums and functions whose last bits depend on the instructions."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {
            name: hashlib.sha256(b"".join(parts)).hexdigest()[:12]
            for name, parts in _compute_samples()
        }
    finally:
        torch.set_num_threads(threads)


def kind() -> str:
    """Return one digest of `kinds`."""
    return hashlib.sha256(repr(sorted(kinds().items())).encode()).hexdigest()[:12]


def _compute_samples() -> Iterator[tuple[str, list[bytes]]]:
    """Yield libraries with their results on the same numbers, in several sizes and types."""
    import numpy as np
    import torch
    from torch.nn import functional

    def numbers(*shape: int) -> Any:
        """Return numbers with 53-bit mantissas between -1 and 1, made of integers: the same everywhere."""
        count = np.arange(math.prod(shape), dtype=np.int64)
        mixed = (count * 2862933555777941757 + 3037000493) & (2**53 - 1)
        return (mixed.astype(np.float64) / 2.0**52 - 1.0).reshape(shape)

    def of(*values: Any) -> list[bytes]:
        return [
            value.detach().contiguous().float().numpy().tobytes()
            if value.dtype == torch.bfloat16
            else value.detach().contiguous().numpy().tobytes()
            for value in values
        ]

    types = (torch.float32, torch.float64)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(0)
        made: list[Any] = [torch.randn(64)]
        for kind in types:
            x = torch.from_numpy(numbers(5003)).to(kind)
            made += [x.exp(), x.tanh(), x.sigmoid(), (x.abs() + 1).log(), x.sum(), x.norm()]
            made += [x.view(-1, 1, 5003).var(2), functional.log_softmax(x[:5000].view(100, 50), 1)]
            images = x[:4800].view(5, 15, 8, 8)
            made.append(functional.batch_norm(images, None, None, training=True))
        yield "torch", of(*made)
        made = []
        for kind in types:
            for rows, inner, columns in ((37, 301, 83), (5, 64, 10), (32, 400, 120), (1, 784, 200)):
                a = torch.from_numpy(numbers(rows, inner)).to(kind)
                b = torch.from_numpy(numbers(inner, columns)).to(kind)
                made += [a @ b, a.T @ (a @ b)]
        yield "mkl", of(*made, torch.linalg.svdvals(torch.from_numpy(numbers(20, 10))))
        made = []
        for kind, channels, out, size in (
            (torch.float32, 3, 6, 5),
            (torch.float32, 16, 32, 3),
            (torch.float32, 64, 64, 3),
            (torch.bfloat16, 16, 32, 3),
        ):
            x = torch.from_numpy(numbers(4, channels, 12, 12)).to(kind)
            x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
            w = torch.from_numpy(numbers(out, channels, size, size)).to(kind).requires_grad_()
            y = functional.conv2d(x, w, padding=1)
            y.square().sum().backward()
            made += [y, x.grad, w.grad]
        yield "onednn", of(*made)
    arrays: list[Any] = []
    for precision in (np.float32, np.float64):
        v = numbers(1000).astype(precision)
        arrays += [np.exp(v), np.log(abs(v) + 1), np.abs(v) ** 1.7, np.sin(v), v.sum()]
        arrays.append(v.reshape(10, 100).std(1))
    yield "numpy", [array.tobytes() for array in arrays]
    square = numbers(12, 50) @ numbers(12, 50).T
    arrays = [numbers(37, 301) @ numbers(301, 83), *np.linalg.eigh(square)]
    yield "openblas", [array.tobytes() for array in arrays]
    functions = (math.exp, math.log, math.sin, math.tanh)
    plain = [function(x) for x in np.abs(numbers(1000)).tolist() for function in functions]
    drawn = np.random.default_rng(0).dirichlet([0.3] * 10, 20)
    yield "libm", [np.array(plain).tobytes(), drawn.tobytes()]


MIXED = (
    "server and client actors compute with several kinds of CPU, so that the last bits depend on which actor runs "
    "which client; resources.bits=portable has them compute alike"
)


def _lacking() -> bool:
    return any(os.environ.get(name, "") != value for name, value in VARIABLES.items())


def _other(expected: Mapping[str, str]) -> list[str]:
    return [name for name, digest in kinds().items() if expected.get(name, digest) != digest]


def versions() -> tuple[str, str]:
    """Return the versions of torch and numpy, without the build tag."""
    return version("torch"), version("numpy")


@cache
def version(package: str) -> str:
    """Return the version of a package, without the part that names its build."""
    return metadata.version(package).partition("+")[0]


@cache
def _info() -> dict[str, str]:
    """Return the system's information on the first CPU."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    return {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in first.splitlines())
    }


def _flags() -> set[str]:
    return set(_info().get("flags", "").split())


def _model() -> str:
    return _info().get("model name") or platform.processor() or platform.machine()
