"""The Ray that flray starts on this machine: in a folder of this user alone, waited for, watched, and ended whole."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from flray.errors import FlrayError, RunFailedError, brief
from flray.files.locks import BusyError, take_lock
from flray.interrupts import RayLostError, preserve_handlers

LOOPBACK = "127.0.0.1"
PREFIX, LOCK = "flray-", "ray.lock"
"""Name of the private folder, and of the file in it that its process holds."""

ROOM = 26
"""Characters of the folder around it, for which the 107 of a socket's path leave room; macOS's has more."""

PATIENCE_SECONDS, PROGRESS_SECONDS, LONGEST_SECONDS = 30.0, 0.5, 600.0
"""A start is given up after so many seconds with less CPU time than that, and after so many in all."""

GRACE_SECONDS = 3.0
"""Seconds that Ray's processes have to end before they are killed."""


@contextlib.contextmanager
def local_ray(resources: dict[str, float]) -> Iterator[None]:
    """Start Ray on this machine, on 127.0.0.1 only, and end all its processes afterwards.

    Parameters
    ----------
    resources : dict
        ``"CPU"`` and ``"GPU"`` that it gives away.

    Raises
    ------
    FlrayError
        If it cannot be started here.
    RunFailedError
        If it could be, and did not start in time, twice.
    RayLostError
        In the thread of the block, if Ray's node process is killed.
    """
    with _private_folder() as folder, contextlib.ExitStack() as stack:
        for attempt in (1, 2):
            processes = _Processes(folder)
            try:
                stack.callback(processes.end)
                with preserve_handlers(), _patient(processes):
                    _start(folder / "r", resources)
                break
            except Exception as error:  # Ray raises plain ones if its node does not start in time
                if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                    raise FlrayError(_refused(brief(error))) from None
                stack.close()
                if attempt == 2:
                    raise RunFailedError(
                        f"Ray is slow to start on this machine ({brief(error)}), and was tried twice; "
                        "give the command again when less runs here, or compute without Ray: "
                        "resources.executor=inline"
                    ) from None
        with processes.watched():
            yield


def _refused(why: str) -> str:
    given = os.environ.get("RAY_TMPDIR")
    hint = f" (its folder is RAY_TMPDIR, {given}: shorter, or unset?)" if given else ""
    hint = hint if "path length" in why else ""
    return f"no Ray on this machine: {why}{hint}; `flray doctor` shows what is there"


def _start(folder: Path, resources: dict[str, float]) -> None:
    import ray

    with _loopback_node():
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=int(resources["CPU"]),
            num_gpus=int(resources["GPU"]),
            logging_level="ERROR",
            log_to_driver=True,
            _node_ip_address=LOOPBACK,
            _temp_dir=str(folder),
        )


@contextlib.contextmanager
def _loopback_node() -> Iterator[None]:
    """Give Ray's node the address 127.0.0.1, so that it binds every socket to it.

    Ray replaces it by an address other machines can reach, unless it takes this machine for one
    that can be in no cluster: its switch for macOS and Windows, which it reads once, at its first
    import.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """Make a folder that only this user may enter, and remove it; and those of processes that were killed.

    Ray opens its own folders to everybody, and with them the sockets that its processes meet at.
    """
    given = os.environ.get("RAY_TMPDIR")
    usual = tempfile.gettempdir()
    base = Path(given or (usual if len(os.fsencode(usual)) <= ROOM else "/tmp"))
    try:
        base.mkdir(parents=True, exist_ok=True)
        for left in base.glob(f"{PREFIX}*/{LOCK}"):
            with contextlib.suppress(BusyError, OSError):
                if left.parent.stat().st_uid == os.getuid() and (lock := take_lock(left, 0)):
                    shutil.rmtree(left.parent, ignore_errors=True)
                    lock.release()
        while True:
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
            lock = take_lock(folder / LOCK)
            if folder.exists():  # another process did not take it for left
                break
    except OSError as error:
        where = f"RAY_TMPDIR, {given}" if given else str(base)
        raise FlrayError(
            f"no Ray on this machine: {where}: no folder can be made here ({brief(error)})"
        ) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            lock.release()


class _Processes:
    """Ray's processes on this machine.

    Parameters
    ----------
    folder : Path
        The private folder, which the command lines of those that this process starts name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._known: set[psutil.Process] = set()
        self._nodes: set[psutil.Process] = set()
        self._used, self._begun = 0.0, time.monotonic()
        self._progressed = self._begun

    def look(self) -> set[psutil.Process]:
        """Return all that were seen so far; those whose parent has died are not found any more."""
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if child in self._known or any(self._folder in word for word in child.cmdline()):
                    self._known.update([child, *child.children(recursive=True)])
                    if child.name() == "raylet":
                        self._nodes.add(child)
        return self._known

    def progress(self) -> bool:
        """Return whether they still get anywhere, as far as one can see from outside: by their CPU time.

        Raises
        ------
        ConnectionError
            If the node process has ended.
        """
        now, used = time.monotonic(), 0.0
        for process in self.look():
            if process in self._nodes and not _runs(process):
                raise ConnectionError("its node process (raylet) ended while it started")
            with contextlib.suppress(psutil.Error):
                used += sum(process.cpu_times()[:2])
        if used > self._used + PROGRESS_SECONDS:
            self._used, self._progressed = used, now
        return now < min(self._progressed + PATIENCE_SECONDS, self._begun + LONGEST_SECONDS)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raise `RayLostError` in this thread if Ray's node process dies before the block ends."""
        self.look()
        ended = threading.Event()
        for node in self._nodes:
            arguments = (node, ended, threading.get_ident())
            threading.Thread(target=self._watch, args=arguments, daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _watch(self, node: psutil.Process, ended: threading.Event, thread: int) -> None:
        with contextlib.suppress(psutil.Error):
            node.wait()
        if ended.is_set():
            return
        # Its agents would print its log, and Ray's native code soon ends this process.
        for process in self._known:
            if _name(process).startswith("ray::"):
                _kill(process)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(RayLostError)
        )

    def end(self) -> None:
        """Disconnect from Ray and end what is left of it."""
        import ray

        try:
            self.look()
            ray.shutdown()
            psutil.wait_procs(self._known, timeout=GRACE_SECONDS)
        finally:  # also if the user asks again, in the middle of what is above
            for process in self.look():
                _kill(process)
            psutil.wait_procs(self._known, timeout=GRACE_SECONDS)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        process.kill()


@contextlib.contextmanager
def _patient(processes: _Processes) -> Iterator[None]:
    """Wait for Ray's node as long as its processes get anywhere; Ray itself waits 30 seconds on any machine.

    The node process ends itself if an agent takes longer; the next start finds its files in memory.
    """
    from ray._private import services

    ask: Callable[..., Any] = services.get_node

    def get_node(*arguments: Any, **options: Any) -> Any:
        while True:
            try:
                return ask(*arguments, **options)
            except RuntimeError:  # it has not registered yet
                if not processes.progress():
                    raise
                time.sleep(0.2)

    services.get_node = get_node
    try:
        yield
    finally:
        services.get_node = ask
