"""Start Ray on this machine, or join one that runs."""

import contextlib
import ctypes
import functools
import importlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

from flray import ray_private as private
from flray.errors import FlrayError, RayNotStartedError, brief, explained
from flray.files import BusyError, take_lock
from flray.process import RayLostError, environment, preserve_handlers, usable_cpus

LOOPBACK = "127.0.0.1"
PREFIX, LOCK = "flray-", "ray.lock"
"""Name of the private folder, and of the file in it that its process holds."""

ROOM = 26
"""Characters of the folder around it, for which the 107 of a socket's path leave room; macOS's has more."""

PATIENCE_SECONDS, PROGRESS_SECONDS, LONGEST_SECONDS = 30.0, 0.5, 600.0
"""A start is given up after so many seconds with less CPU time than that, and after so many in all."""

TOKEN = "RAY_AUTH_TOKEN"
"""Environment variable with the secret of a session, which all its processes have."""

GRACE_SECONDS = 3.0
"""Seconds that Ray's processes have to end before they are killed."""


_started_here = threading.Event()
"""Set as long as this process is connected to a Ray that it has started."""


@contextlib.contextmanager
def local_ray(
    resources: dict[str, float], meanwhile: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Start Ray on this machine, on 127.0.0.1 only, and end all its processes afterwards.

    Parameters
    ----------
    resources : dict
        ``"CPU"`` and ``"GPU"`` that it gives away.
    meanwhile : callable
        Called while Ray's processes start, which takes two seconds.

    Raises
    ------
    FlrayError
        If it cannot be started here.
    RayNotStartedError
        If it could be, and did not start in time, twice.
    RayLostError
        In the thread of the block, if Ray's node process is killed.
    """
    with _private_folder() as folder:
        processes = _Processes(folder)
        try:
            for attempt in (1, 2):
                try:
                    wait = functools.partial(_patient, processes, meanwhile)
                    with preserve_handlers(), private.replaced(private.NODE, wait):
                        _start(folder / "r", resources)
                    break
                except (
                    Exception
                ) as error:  # Ray raises plain ones if its node does not start in time
                    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
                        raise FlrayError(_refused(brief(error))) from None
                    if attempt == 2:
                        raise RayNotStartedError(
                            f"Ray is slow to start on this machine ({brief(error)}), and was tried twice; give the "
                            "command again when less runs here; a single run needs no Ray with "
                            "resources.executor=inline"
                        ) from None
                    processes.end()
                    processes = _Processes(folder)
            _started_here.set()
            with processes.watched():
                yield
        finally:
            _started_here.clear()
            try:
                processes.end()
            finally:  # also if the user asks again before that begins
                processes.kill()


def _refused(why: str) -> str:
    given = os.environ.get("RAY_TMPDIR")
    hint = f" (its folder is RAY_TMPDIR, {given}: shorter, or unset?)" if given else ""
    hint = hint if "path length" in why else ""
    return f"no Ray on this machine: {why}{hint}; `flray doctor` shows what is there"


def _start(folder: Path, resources: dict[str, float]) -> None:
    import ray

    with private.on_one_machine():
        ray.init(
            address="local",
            include_dashboard=False,
            num_cpus=int(resources["CPU"]),
            num_gpus=int(resources["GPU"]),
            logging_level="ERROR",
            log_to_driver=True,
            **{private.ADDRESS: LOOPBACK, private.FOLDER: str(folder)},
        )


def folder_of_sessions() -> Path:
    """Return the parent of the sessions' private folders: ``RAY_TMPDIR``, or the folder for temporary files."""
    usual = tempfile.gettempdir()
    usual = usual if len(os.fsencode(usual)) <= ROOM else "/tmp"
    return Path(os.environ.get("RAY_TMPDIR") or usual)


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    """Make a folder that only this user may enter, and remove it and the folders of killed processes.

    Ray opens its folders to everybody, and with them the sockets that its processes meet at.
    """
    given, base = os.environ.get("RAY_TMPDIR"), folder_of_sessions()
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
        try:
            shutil.rmtree(folder, ignore_errors=True)
        finally:  # also if the user asks again
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
        """Return all that were seen so far; those whose parent has died are found by `kill` alone."""
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if child in self._known or self._names_folder(child):
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
            with contextlib.suppress(psutil.Error):
                if process.name().startswith("ray::"):
                    process.kill()
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread), ctypes.py_object(RayLostError)
        )

    def end(self) -> None:
        """Disconnect from Ray and end its remaining processes."""
        import ray

        try:
            self.look()
            ray.shutdown()
            psutil.wait_procs(self._known, timeout=GRACE_SECONDS)
        finally:  # also if the user asks again, in the middle of what is above
            self.kill()

    def kill(self) -> None:
        """Kill those that remain, also agents whose node process ended before they were seen."""
        token = os.environ.get(TOKEN)
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if self._names_folder(process) and process.environ().get(TOKEN) == token:
                    self._known.add(process)
        for process in self.look():
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(self._known, timeout=GRACE_SECONDS)

    def _names_folder(self, process: psutil.Process) -> bool:
        return any(self._folder in word for word in process.cmdline())


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _patient(
    processes: _Processes, meanwhile: Callable[[], object], ask: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a wait for Ray's node as long as its processes get anywhere; Ray's own ends after 30 seconds.

    The node process ends itself if an agent takes longer; the next start finds its files in memory.
    """

    def get_node(*arguments: Any, **options: Any) -> Any:
        with contextlib.suppress(ImportError):  # it fails again where it is needed
            meanwhile()
        while True:
            try:
                return ask(*arguments, **options)
            except RuntimeError:  # it has not registered yet
                if not processes.progress():
                    raise
                time.sleep(0.2)

    return get_node


_HERE = {
    # Replies up to this size come with the call's result instead of through the object store,
    # which costs a small network's round several percent.
    "RAY_max_direct_call_object_size": str(512 * 1024),
    # Ray's own default, 15, leaves its workers next to nothing beside any other process of the
    # machine.
    "RAY_worker_niceness": "0",
    # Its record of every task, for a dashboard that is not started, grows by a third of a MiB in a
    # round of 200 clients.
    "RAY_task_events_report_interval_ms": "0",
    # Else a process for every CPU starts at once; trials and actors start those that they need.
    "RAY_prestart_worker_first_driver": "0",
    # Else its agents print the log of a node process that was killed before they can be ended.
    "RAY_enable_pipe_based_agent_to_parent_health_check": "0",
}
"""Environment variables of a Ray that is started here, unless the user set them."""

_CHANGED = (
    "RAY_AUTH_MODE",
    TOKEN,
    "RAY_AUTH_TOKEN_PATH",
    "RAY_USAGE_STATS_ENABLED",
    "PYTHONBREAKPOINT",
    *_HERE,
)
"""Environment variables that a session changes, including those that Ray sets."""


def local_resources() -> dict[str, float]:
    """Return the CPUs this process may use and the GPUs torch sees; without a device file there is none to see."""
    gpus, files = 0, ("nvidia*", "nvhost*", "kfd", "dxg")
    if "torch" in sys.modules or any(file for name in files for file in Path("/dev").glob(name)):
        import torch

        gpus = torch.cuda.device_count()
    return {"CPU": float(usable_cpus()), "GPU": float(gpus)}


def ray_ahead(
    wanted: bool, address: str | None, module: str
) -> contextlib.AbstractContextManager[object]:
    """Return a context with a module imported, torch and all, while the Ray of this machine starts.

    Parameters
    ----------
    wanted : bool
        Whether Ray is needed; without, the context does nothing.
    address : str or None
        As in `ray_session`; what joins a cluster does so later, after all checks.
    module : str
        Its name.
    """
    if wanted and chosen_address(address, lambda line: None) is None:
        return ray_session(None, meanwhile=lambda: importlib.import_module(module))
    return contextlib.nullcontext()


def chosen_address(address: str | None, notify: Callable[[str], None]) -> str | None:
    """Return the cluster to join: the one that is named, else that of the environment; None starts Ray here.

    Ray sets ``RAY_ADDRESS`` in the jobs that it is given, which belong on its cluster and not on a
    second Ray beside it. ``local``, as with Ray, starts one here in any case.

    Parameters
    ----------
    address : str, optional
        As the user gave it.
    notify : callable
        Called with a line where the environment decides.
    """
    found = os.environ.get("RAY_ADDRESS")
    if address is None and found and found != "local":
        notify(f"joining the Ray at {found}, as RAY_ADDRESS says (--address local: start one here)")
        return found
    return None if address == "local" else address


@contextlib.contextmanager
def ray_session(
    address: str | None,
    variables: Mapping[str, str] | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[dict[str, float]]:
    """Start or join Ray and yield its resources; stop it and restore the environment afterwards.

    A Ray started here listens on 127.0.0.1 only and requires a fresh token, whatever the environment
    says, because it executes the code that it receives.

    Parameters
    ----------
    address : str or None
        A running cluster; None starts Ray on this machine, whatever else runs here.
    variables : mapping, optional
        Variables for the environment of all its processes; this process has them already.
    meanwhile : callable
        See `local_ray`.

    Raises
    ------
    FlrayError
        If the cluster cannot be reached, or Ray cannot be started here.
    RayLostError
        In this thread, if the Ray that was started here loses its node process.
    """
    if connected():
        import ray

        yield ray.cluster_resources()
        return
    if address is not None:
        _check_answers(address)
    with _environment(address), contextlib.ExitStack() as stack:
        import ray

        private.check(*private.SESSION)
        if address is None:
            stack.enter_context(local_ray(local_resources(), meanwhile))
        else:
            stack.callback(ray.shutdown)
            with (
                explained(  # Ray raises plain errors too
                    Exception,
                    f"no Ray at {address}",
                    "`flray doctor` shows what is there",
                    FlrayError,
                ),
                preserve_handlers(),
            ):
                # Processes of this machine's own Ray have this one's environment, those of a
                # cluster have not.
                ray.init(
                    address=address,
                    logging_level="ERROR",
                    log_to_driver=True,
                    runtime_env={"env_vars": dict(variables)} if variables else None,
                )
        yield ray.cluster_resources()


def connected() -> bool:
    """Return whether this process is connected to a Ray."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def joined() -> bool:
    """Return whether this process is connected to a Ray of others, which then determines the resources."""
    return connected() and not _started_here.is_set()


@contextlib.contextmanager
def _environment(address: str | None) -> Iterator[None]:
    """Set the environment variables of Ray's processes, and restore them afterwards."""
    try:
        with environment(dict.fromkeys(_CHANGED)):
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            if address is None:
                # A token for this session only: neither a cluster's, nor one that Ray would
                # write into the home.
                os.environ.pop("RAY_AUTH_TOKEN_PATH", None)
                os.environ.update({"RAY_AUTH_MODE": "token", TOKEN: secrets.token_hex(32)})
                for name, value in _HERE.items():
                    os.environ.setdefault(name, value)
            _read_authentication_anew()
            yield
    finally:
        _read_authentication_anew()


def _read_authentication_anew() -> None:
    """Make Ray's native code read the token settings from the environment again."""
    # In this order: a thread of a session that has just ended may still ask for the token its mode
    # wants.
    private.member(private.CONFIG)("")
    private.member(private.TOKENS)().reset_cache()


def _check_answers(address: str) -> None:
    """Reject an address that nothing listens at; Ray itself would retry silently for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        if address.startswith("ray://"):
            raise FlrayError(f"no Ray at {address}: write ray://HOST:PORT")
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (
        OSError,
        OverflowError,
        ValueError,
    ) as error:  # ports above 65535, names that are no host's
        why = getattr(error, "strerror", None) or error
        raise FlrayError(
            f"no Ray at {address}: {why}; start it there (ray start --head), or leave "
            "the address out to run on this machine"
        ) from None
