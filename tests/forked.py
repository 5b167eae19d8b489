"""Ray's workers in tests, forked from a process that has imported torch, which takes each two seconds of CPU time.

Ray starts this file instead of its own ``setup_worker.py``. All else of a worker is as ever, its imports of flray too.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

PLACE = "FLRAY_TEST_FORKS"
IMPORTED = "torch", "pandas", "pydantic", "PIL.Image", "rich.console", "jsonschema", "requests"
"""What workers import; not Ray, which reads its environment as it is imported."""
STARTS = "ray._private.ray_constants:SETUP_WORKER_FILENAME"
_folders: list[tempfile.TemporaryDirectory[str]] = []


@contextlib.contextmanager
def light_nodes(forks: bool = True) -> Iterator[None]:
    """Let nodes of Ray that start in the block have no dashboard; and such workers, which are not their children."""
    from flray import ray_private as private

    forks = forks and sys.platform == "linux"
    replacements = {**private.ON_ONE_MACHINE, STARTS: lambda usual: __file__ if forks else usual}
    del replacements[private.CLUSTER]  # drivers that tests start join them
    if forks and not _folders:
        # Of this user alone, and short: a socket's path has 107 characters.
        _folders.append(tempfile.TemporaryDirectory(dir="/tmp"))
        os.environ[PLACE] = str(Path(_folders[0].name, "calls"))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as calls:
            calls.bind(os.environ[PLACE])
            calls.listen()
            command, passed = [sys.executable, __file__], [calls.fileno()]
            subprocess.Popen([*command, str(*passed)], stdin=subprocess.PIPE, pass_fds=passed)
    with contextlib.ExitStack() as stack:
        for name, make in replacements.items():
            stack.enter_context(private.replaced(name, make))
        yield


def serve(calls: socket.socket) -> None:
    """Fork a worker for each call, until the tests' process is gone."""
    os.environ["OMP_NUM_THREADS"] = "1"  # as Ray sets it
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while select.select([calls, sys.stdin], [], [])[0] == [calls]:
        caller, _ = calls.accept()
        if not os.fork():
            calls.close()
            become(caller)
            return
        caller.close()


def become(caller: socket.socket) -> None:
    """Continue as the process that called."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, files, _, _ = socket.recv_fds(caller, 2**20, 3)
    sys.argv[:], environment, sys.path[:], folder = json.loads(data)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    caller.close()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    runpy.run_path(sys.argv[0], run_name="__main__")


def call(arguments: list[str]) -> None:
    """Have a worker forked; Ray itself starts one with an environment of its own."""
    if any(one.startswith("--serialized-runtime-env-context") for one in arguments):
        start = str(Path(arguments[0]).with_name("setup_worker.py"))
        os.execv(sys.executable, [sys.executable, start, *arguments])
    arguments.remove("--language=PYTHON")
    path = [str(Path(arguments[0]).parent), *sys.path[1:]]
    content = json.dumps([arguments, dict(os.environ), path, str(Path.cwd())]).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.environ[PLACE])
        socket.send_fds(server, [content], [0, 1, 2])


if __name__ == "__main__":
    if sys.argv[1].isdecimal():
        serve(socket.socket(fileno=int(sys.argv[1])))
    else:
        call(sys.argv[1:])
