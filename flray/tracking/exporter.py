"""Export a run's journal to MLflow: every event once, in order, despite kills."""

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from flray.errors import one_line
from flray.files import foreign, origin, read, sync_file
from flray.files.tracking_address import database_path, redact, resolve_uri, without_secrets
from flray.metrics import clean_name
from flray.records import JOURNAL, Event, decode
from flray.tracking import client

UID_TAG, _FOLDER_TAG, _PARENT_TAG = "flray.uid", "flray.folder", "mlflow.parentRunId"
_FETCHED_TAG = "flray.fetched"
"""Marks a run whose values come from a folder that others may have written."""
_WEIGHTS_TAG = "flray.weights"
"""Of a logged model: the SHA-256 of its files of weights."""
_IDENTITY_TAGS = (UID_TAG, _FOLDER_TAG, _PARENT_TAG, _FETCHED_TAG)
# MLflow's limits of one request, and of the length of a value in characters.
_MOST = {"metrics": 1000, "params": 100, "tags": 100}
_PARAM_LENGTH, _TAG_LENGTH, _DIGEST_LENGTH = 6000, 5000, 36
_Point = tuple[str, float, int, int]
"""Name, value, time [ms since 1970] and round of a metric."""


class MlflowExporter:
    """Sends the journal of one run directory.

    Progress is stored in ``tracking.json``. An event may come twice: after a kill before that was
    written, or if a round is run again because the journal's copy in object storage was older
    than MLflow's data. The run is found by its uid, and rounds that MLflow has already are not
    sent again.

    Parameters
    ----------
    run_dir : Path
        The run directory.
    uri : str
        MLflow's address: ``sqlite:///...`` or ``http(s)://...``.
    parent_dir : Path, optional
        The sweep's run directory, whose run becomes the parent.
    every : int
        Only rounds that this divides are sent, and the last one before an end.

    Attributes
    ----------
    reason : str or None
        The reason why the last `flush` did not send all events.
    notices : list of str
        Lines for the user on omitted data.

    Raises
    ------
    FlrayError
        If the address is invalid.
    """

    def __init__(
        self, run_dir: Path, uri: str, *, parent_dir: Path | None = None, every: int = 1
    ) -> None:
        self.run_dir, self.parent_dir, self._every = Path(run_dir), parent_dir, every
        self._address = resolve_uri(uri)
        self.uri = redact(self._address)
        self.reason: str | None = None
        self.notices: list[str] = []
        self._client: Any = None
        self._checked = False
        self._compare = True  # until MLflow is known to have none of the unsent rounds
        self._rounds_there: dict[str, set[int]] = {}

    @property
    def journal(self) -> Path:
        """The journal file."""
        return self.run_dir / JOURNAL

    def flush(self, stop: Callable[[], bool] = lambda: False) -> int:
        """Send the journal's new events and return the number left unsent.

        Parameters
        ----------
        stop : callable, optional
            Called between requests; True stops sending early.

        Raises
        ------
        TrackingRejectedError
            If the server rejected a request. An unreachable server raises nothing, see `reason`.
        """
        self.reason = None
        if not self.unsent():
            return 0
        try:
            with self._session(seconds=0.0):
                try:
                    self._send(stop)
                except client.TrackingRejectedError as error:
                    known = client.load_cursor(self.run_dir, self.uri).run_id is not None
                    if error.code != "RESOURCE_DOES_NOT_EXIST" or not known:
                        raise
                    # The server forgot the run (its database was removed): start over, once.
                    client.save_cursor(self.run_dir, client.Cursor(self.uri))
                    self._rounds_there.clear()
                    self._send(stop)
        except client.TrackingUnavailableError as error:
            self.reason = str(error)
        return self.unsent()

    def unsent(self) -> int:
        """Return the number of complete, unsent events."""
        return sum(
            1
            for _ in client.unsent_lines(
                self.run_dir, client.load_cursor(self.run_dir, self.uri).offset
            )
        )

    def open_run(self) -> str | None:
        """Return the MLflow run id, creating the run if needed; None if the journal does not name the run yet.

        Raises
        ------
        TrackingUnavailableError
            If the server cannot be reached.
        TrackingRejectedError
            If the server rejected the request.
        """
        cursor = client.load_cursor(self.run_dir, self.uri)
        if cursor.run_id is None or self._origin is not None:
            with self._session(seconds=10.0):
                # another process may have created it meanwhile
                cursor = client.load_cursor(self.run_dir, self.uri)
                known = cursor.run_id is not None
                for line, _ in () if known else client.unsent_lines(self.run_dir, 0):
                    event = decode(line)
                    if event["type"] == "start":
                        self._start(event, cursor)
                        break
        return cursor.run_id

    @contextlib.contextmanager
    def _session(self, seconds: float) -> Iterator[None]:
        """Lock the run directory and yield a client."""
        limits = client.http_limits() if self.uri.startswith("http") else contextlib.nullcontext()
        with client.lock(self.run_dir, seconds=seconds), limits, client.silence_mlflow_logs():
            # so that `flray sync` knows the address if this fails
            if client.read_cursor(self.run_dir) is None:
                client.save_cursor(self.run_dir, client.Cursor(self.uri))
            if self._client is None:
                self._client = client.connect(self._address)
            if not self._checked:
                self._check_cursor()
            yield

    @cached_property
    def _origin(self) -> str | None:
        """The origin of a folder that others may have written; None for the user's own."""
        return origin(self.run_dir) if foreign(self.run_dir) else None

    def _owns(self, tags: Mapping[str, str]) -> bool:
        """Return whether a run of the server with the uid of this one may be it, by its tags.

        A uid in a folder that others may have written can be that of any run.
        """
        if self._origin is None:
            return _FETCHED_TAG not in tags
        return f"/{self._origin}/" in f"/{tags.get(_FOLDER_TAG, '')}/"

    def _check_cursor(self) -> None:
        """Forget the run that the cursor names, if others may have written it and it is another run's."""
        known = client.load_cursor(self.run_dir, self.uri)
        if self._origin is not None and known.run_id is not None:
            try:
                tags = self._call("get_run", known.run_id).data.tags
            except client.TrackingRejectedError:  # there is no such run
                tags = {}
            if not self._owns(tags):
                client.save_cursor(self.run_dir, client.Cursor(self.uri))
        self._checked = True

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return client.call(self._address, getattr(self._client, method), *args, **kwargs)

    def _send(self, stop: Callable[[], bool]) -> None:
        cursor = client.load_cursor(self.run_dir, self.uri)
        # Sent events must survive a machine crash, or the rounds run again after it would be
        # recorded with a new time and appear twice.
        sync_file(self.journal)
        metrics: list[_Point] = []
        gathered = cursor.offset  # end of the last round in `metrics`
        for line, end in client.unsent_lines(self.run_dir, cursor.offset):
            event = decode(line)
            again = event["type"] == "round" and event.get("replaces", False)
            new = [] if not again and event.get("round", 0) % self._every else _points(event)
            if gathered > cursor.offset and (
                event["type"] != "round" or again or len(metrics) + len(new) > _MOST["metrics"]
            ):
                self._log_metrics(cursor, metrics, gathered)
                metrics = []
            if stop():
                return
            if again:
                self._log_metrics(cursor, new, end, again=True)
                gathered = end
            elif event["type"] == "round":
                metrics, gathered = metrics + new, end
            else:
                if event["type"] == "end" and (last := self._last_round(end)):
                    self._log_metrics(cursor, last, gathered)
                self._handle(event, cursor)
                cursor.offset = gathered = end
                client.save_cursor(self.run_dir, cursor)
        if gathered > cursor.offset:
            self._log_metrics(cursor, metrics, gathered)

    def _last_round(self, end: int) -> list[_Point]:
        """Return the last round before an end of the journal, unless `every` divides it."""
        if self._every == 1:
            return []
        before = (decode(line) for line, to in client.unsent_lines(self.run_dir, 0) if to < end)
        rounds = {one["round"]: one for one in before if one["type"] == "round"}
        last = max(rounds, default=0)
        return _points(rounds[last]) if last % self._every else []

    def _log_metrics(
        self, cursor: client.Cursor, metrics: list[_Point], end: int, again: bool = False
    ) -> None:
        if metrics and self._compare and not again:
            metrics = self._filter_unsent(cursor, metrics)
        self._log(cursor, "metrics", metrics)
        cursor.offset = end
        client.save_cursor(self.run_dir, cursor)

    def _filter_unsent(self, cursor: client.Cursor, metrics: list[_Point]) -> list[_Point]:
        """Return the values that MLflow lacks; a round counts as sent if its first metric is there."""
        first = {round_: name for name, _, _, round_ in reversed(metrics)}
        sent = {name: self._sent_rounds(cursor, name) for name in set(first.values())}
        there = {round_ for round_, name in first.items() if round_ in sent[name]}
        if not there:
            latest = max((max(rounds, default=-1) for rounds in sent.values()), default=-1)
            self._compare = not all(round_ > latest for round_ in first)
            return metrics
        return [
            point
            for point in metrics
            if point[3] not in there or point[3] not in self._sent_rounds(cursor, point[0])
        ]

    def _sent_rounds(self, cursor: client.Cursor, name: str) -> set[int]:
        """Return the rounds that MLflow has a metric's values of."""
        if name not in self._rounds_there:
            history = self._call("get_metric_history", self._run_id(cursor), name)
            self._rounds_there[name] = {int(metric.step) for metric in history}
        return self._rounds_there[name]

    def _run_id(self, cursor: client.Cursor) -> str:
        if cursor.run_id is None:
            raise client.TrackingRejectedError(
                f"{self.journal}: the run's start is missing, so MLflow cannot be told which run this is"
            )
        return cursor.run_id

    def _handle(self, event: Event, cursor: client.Cursor) -> None:
        kind = event["type"]
        if kind == "start" and cursor.run_id is None:
            self._start(event, cursor)
        if kind in ("start", "params"):
            params = event["params"].items()
            cut = ((clean_name(name), _shorten(value, _PARAM_LENGTH)) for name, value in params)
            self._log(cursor, "params", cut)
        elif kind == "tags":
            self._log(cursor, "tags", self._tags(event).items())
        elif kind == "artifact":
            self._upload(cursor, event)
        elif kind == "data":
            self._log_data(cursor, event)
        elif kind == "resume":
            self._call("update_run", self._run_id(cursor), status="RUNNING")
        elif kind == "end":
            self._call(
                "set_terminated",
                self._run_id(cursor),
                status=event["status"],
                end_time=event["time"],
            )
        elif kind != "called":
            self.notices.append(
                f"{self.journal}: an event of type {kind!r} is not sent; this flray does not know it"
            )

    def _start(self, event: Event, cursor: client.Cursor) -> None:
        """Find or create the run, and store its id before anything else is sent."""
        cursor.experiment_id = self._experiment(event["experiment"])
        cursor.run_id = self._find(cursor.experiment_id, event["uid"])
        if cursor.run_id is None:
            tags = {**self._tags(event), UID_TAG: event["uid"]}
            if self._origin is not None:
                tags |= {_FETCHED_TAG: "true", _FOLDER_TAG: str(self.run_dir.resolve())}
            parent = self._parent(event, cursor.experiment_id)
            if parent is not None:
                tags[_PARENT_TAG] = parent
            self._compare = False
            created = self._call(
                "create_run",
                cursor.experiment_id,
                start_time=event["time"],
                tags=tags,
                run_name=event["name"],
            )
            cursor.run_id = created.info.run_id
        client.save_cursor(self.run_dir, cursor)

    def _tags(self, event: Event) -> dict[str, str]:
        """Return an event's tags as MLflow takes them, without those that say whose the run is."""
        tags = {clean_name(n): _shorten(v, _TAG_LENGTH) for n, v in event["tags"].items()}
        if self._origin is not None:
            tags = {name: value for name, value in tags.items() if name not in _IDENTITY_TAGS}
        return tags

    def _experiment(self, name: str) -> str:
        found = self._call("get_experiment_by_name", name)
        if found is None:
            # Beside a database, not below a process's current directory.
            place, folder = database_path(self.uri), re.sub(r"[^\w.\-]", "_", name)
            where = None if place is None else (place.parent / "mlruns" / folder).as_uri()
            try:
                return str(self._call("create_experiment", name, artifact_location=where))
            except client.TrackingRejectedError as error:
                # another process may have created it meanwhile
                found = self._call("get_experiment_by_name", name)
                if error.code != "RESOURCE_ALREADY_EXISTS" or found is None:
                    raise
        if found.lifecycle_stage != "active":
            raise client.TrackingRejectedError(
                f"tracking at {self.uri}: experiment {name!r} is deleted there; restore it "
                f"(mlflow experiments restore -x {found.experiment_id}) or choose another name"
            )
        return str(found.experiment_id)

    def _find(self, experiment_id: str, uid: str) -> str | None:
        tagged = f"tags.`{UID_TAG}` = '{uid}'"
        runs = self._call("search_runs", [experiment_id], filter_string=tagged)
        return next((str(run.info.run_id) for run in runs if self._owns(run.data.tags)), None)

    def _parent(self, event: Event, experiment_id: str) -> str | None:
        run_id = None
        if self.parent_dir is not None:
            run_id = MlflowExporter(self.parent_dir, self._address).open_run()
        if run_id is None and event["parent"] is not None:
            run_id = self._find(experiment_id, event["parent"])
        return run_id

    def _log(self, cursor: client.Cursor, kind: str, entries: Iterable[tuple[Any, ...]]) -> None:
        """Send metrics, params or tags; params that MLflow refuses are reported and left out."""
        from mlflow.entities import Metric, Param, RunTag

        made = {"metrics": Metric, "params": Param, "tags": RunTag}[kind]
        every, most = [made(*entry) for entry in entries], _MOST[kind]
        for first in range(0, len(every), most):
            few = {kind: every[first : first + most]}
            try:
                self._call("log_batch", self._run_id(cursor), **few, synchronous=True)
            except client.TrackingRejectedError as error:
                if kind != "params" or error.code != "INVALID_PARAMETER_VALUE":
                    raise
                self.notices.append(f"{self.run_dir}: MLflow did not take these settings: {error}")

    def _log_data(self, cursor: client.Cursor, event: Event) -> None:
        """List a data set among the run's inputs."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        found = Dataset(
            name=event["name"],
            digest=event["digest"][:_DIGEST_LENGTH],
            source_type="code",  # which `mlflow.data.get_source` reads
            source=json.dumps({"tags": {"origin": event["source"]}}),
            profile=json.dumps(event["profile"]),
        )
        tags = [InputTag("mlflow.data.context", "training, test")]
        self._call("log_inputs", self._run_id(cursor), datasets=[DatasetInput(found, tags)])

    def _log_model(self, cursor: client.Cursor, folder: Path, name: str) -> None:
        """Upload a folder as a logged model of the run; after a kill the one that was begun is completed.

        A run that was given more rounds has another one, and MLflow loads the newest of a name.
        """
        from mlflow.entities import LoggedModelOutput

        weights = hashlib.sha256()
        for path in sorted(folder.rglob("*.safetensors")):
            weights.update(read(path))
        digest = weights.hexdigest()
        run, where = self._run_id(cursor), [cursor.experiment_id or ""]
        known = self._call("search_logged_models", where, filter_string=f"source_run_id = '{run}'")
        mine = (one for one in known if one.name == name)
        # An older flray noted no digest.
        made = next((one for one in mine if one.tags.get(_WEIGHTS_TAG, digest) == digest), None)
        if made is None:
            tags = {_WEIGHTS_TAG: digest}
            made = self._call(
                "create_logged_model", where[0], name=name, source_run_id=run, tags=tags
            )
        if made.status != "READY":
            self._call("log_model_artifacts", made.model_id, str(folder))
            self._call("finalize_logged_model", made.model_id, "READY")
        outputs = self._call("get_run", run).outputs
        if made.model_id not in [one.model_id for one in getattr(outputs, "model_outputs", ())]:
            self._call("log_outputs", run, [LoggedModelOutput(made.model_id, step=0)])

    def _upload(self, cursor: client.Cursor, event: Event) -> None:
        """Upload a file or folder. A file that fails is reported and left out; later metrics are still sent."""
        path = (self.run_dir / event["path"]).resolve()
        if not path.is_relative_to(self.run_dir.resolve()) or not path.exists():
            self.notices.append(f"{path} is not uploaded: no such file in the run directory")
            return
        try:
            if (path / "MLmodel").is_file():
                self._log_model(cursor, path, event["to"])
            else:
                method = "log_artifacts" if path.is_dir() else "log_artifact"
                self._call(method, self._run_id(cursor), str(path), event["to"] or None)
        except client.TrackingUnavailableError:
            raise
        except Exception as error:  # every artifact store has its own errors
            self._call("get_run", self._run_id(cursor))  # a run that is gone is no such error
            self.notices.append(
                f"{path} is not uploaded: {one_line(without_secrets(str(error), self._address))}"
            )


def _points(event: Event) -> list[_Point]:
    metrics = event.get("metrics", {}).items()
    return [(name, value, event["time"], event["round"]) for name, value in metrics]


def _shorten(value: object, length: int) -> str:
    text = str(value)
    return text if len(text) <= length else text[: length - 1] + "…"
