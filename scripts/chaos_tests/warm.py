"""A process that has imported what flray needs, and forks itself for each command line.

A command then begins within milliseconds instead of seconds, and is otherwise what the `flray`
script does: the fork sets the arguments and calls `flray.cli.main.main`. One order per line of JSON
comes in, its process and later its exit code go out.
"""

import importlib
import json
import os
import signal
import sys
import time
from typing import Any


def obey(order: dict[str, Any]) -> None:
    """Become the command of an order."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for mine, there in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(mine, there)
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    sys.argv = ["flray", *order["arguments"]]
    if order.get("operation"):
        die_at(order["operation"], order["folder"])
    if order.get("clock"):
        set_clock(*order["clock"])


def die_at(last: int, folder: str) -> None:
    """Kill this process at its so many-th operation on a file or folder below `folder`."""
    done = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal done
        if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.truncate"):
            return
        path, *rest = arguments
        if event == "open":
            flags = rest[1] if isinstance(rest[1], int) else 0
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        if isinstance(path, str | os.PathLike) and os.path.abspath(path).startswith(folder):  # noqa: PTH100
            done += 1
            if done == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def set_clock(first: float, seconds: float, then: float) -> None:
    """Have this process's clock wrong by `first` seconds, and after so many seconds by `then`."""
    began, real, real_ns = time.monotonic(), time.time, time.time_ns

    def wrong() -> float:
        return first if time.monotonic() - began < seconds else then

    time.time = lambda: real() + wrong()
    time.time_ns = lambda: real_ns() + int(wrong() * 1e9)


def serve() -> bool:
    """Read orders until there are none; True in a process that has one to obey."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            obey(json.loads(line))
            return True
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return False


def prepare() -> None:
    """Import what commands import, also what they import late."""
    ours = ("cli.display", "runs.runner", "drawing.charts", "tracking.background")
    tuning = ("api", "reporting.build", "tuning.callback", "tuning.tuner")
    theirs = ("matplotlib.backends.backend_agg", "mlflow.store.tracking.sqlalchemy_store", "optuna")
    others = ("scipy.stats", "sklearn.datasets", "torch._dynamo", "torch.onnx")
    for name in (*(f"flray.{one}" for one in ours + tuning), *theirs, *others):
        importlib.import_module(name)


if __name__ == "__main__":
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    prepare()
    print("ready", flush=True)
    if serve():
        from flray.cli.main import main

        main()
