"""Types of data sets and of a federation's data: plain arrays, so that they reach every process without a copy."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flray.errors import DataError, explained

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
Floats: TypeAlias = NDArray[np.float64]
Singles: TypeAlias = NDArray[np.float32]
Flags: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]
Rows = Ints
Images: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = Ints | Images


_BLOCK = 2**26  # bytes that are read at a time


def rows_by_number(numbers: Rows) -> list[tuple[np.int64, Rows]]:
    """Return each number that occurs, in ascending order, with its places, as if looked for one after another."""
    places = np.argsort(numbers, kind="stable")
    known, starts = np.unique(numbers[places], return_index=True)
    return list(zip(known, np.split(places, starts)[1:], strict=True))


def backing_file(array: Array) -> str | None:
    """Return the file that holds exactly this memory-mapped array and no more, or None."""
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    if (
        isinstance(base, np.memmap)
        and base.filename is not None
        and base.shape == array.shape
        and base.ctypes.data == array.ctypes.data
        and array.flags.c_contiguous
    ):
        return str(base.filename)
    return None


def join_parts(parts: Sequence[Array]) -> Array | None:
    """Return the array whose consecutive parts these are, if they are all there is of it."""
    base = parts[0].base
    if (
        not isinstance(base, np.ndarray)
        or base.dtype != parts[0].dtype
        or not base.flags.c_contiguous
        or base.nbytes != sum(part.nbytes for part in parts)
    ):
        return None
    place = base.ctypes.data
    for part in parts:
        if (
            part.base is not base
            or not part.flags.c_contiguous
            or (len(part) and part.ctypes.data != place)
        ):
            return None
        place += part.nbytes
    return np.asarray(base).reshape(-1, *parts[0].shape[1:])


def add_bytes(digest: "hashlib._Hash", array: Array) -> None:
    """Add an array's bytes as if it were contiguous, without a copy of all of it."""
    step = max(1, _BLOCK // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        digest.update(np.ascontiguousarray(array[start : start + step]).data)


def digest_of(*arrays: Array) -> str:
    """Return the SHA-256 (hex) of arrays' bytes one after another."""
    digest = hashlib.sha256()
    for array in arrays:
        add_bytes(digest, array)
    return digest.hexdigest()


Origin = Literal["real", "composed", "rendered", "random"]


@dataclass(frozen=True)
class Domain:
    """One source of samples, with a train and a test part.

    Attributes
    ----------
    name : str
        For example ``"mnist"``.
    origin : {"real", "composed", "rendered", "random"}
        The origin of the samples; every report prints it.
    train_x, test_x : ndarray [n, C, H, W]
        uint8 images (or float32 features of any shape, which are then used as they are).
    train_y, test_y : ndarray of int64 [n] or of uint8 [n, K, H, W]
        Class labels, 0-based; for segmentation masks of K structures, which may overlap, 1 inside; numbers or flags
        [n, k] for tasks that have these (`flray.tasks.base.Task.target`).
    """

    name: str
    origin: Origin
    train_x: Array
    train_y: Labels
    test_x: Array
    test_y: Labels


@dataclass(frozen=True)
class DataSet:
    """One or several domains over the same classes.

    Attributes
    ----------
    name : str
        The registered name.
    domains : tuple of Domain
        At least one; all with the same sample shape and dtype.
    classes : tuple of str
        Class names in label order; for segmentation the structures' names, for numbers and flags those of the columns.
    mean, std : tuple of float
        Per channel, for images scaled to [0, 1]; samples are normalised with them on the device.
    task : str
        What is to be learnt, a registered task: ``"classification"``, ``"binary"`` (two classes, the
        second one positive), ``"regression"``, ``"multi-label"``, ``"segmentation"`` or
        ``"few-shot"`` (test parts of other classes than training parts).
    public : ndarray of uint8 [n, C, H, W] or None
        Unlabelled samples that every client and the server may see.
    coarse : tuple of int or None
        Superclass of each class, where classes have one (CIFAR-100).
    ordered : bool
        Whether parts and order are those of its authors' archive, so that a protocol that names the
        first or last samples means these.
    encoding : str
        The changes to a table's columns before anything is learnt from them, in words; not identity.
    columns : mapping
        Of a table, by ``inputs`` and ``labels``, the source of each value of a sample: the ``column``, of a column of
        words the ``word``, of one of dates the ``unit``, and the ``fill``, ``mean`` and ``std`` that changed it, by
        domain if they are a domain's own; not identity.
    """

    name: str
    domains: tuple[Domain, ...]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    task: str = "classification"
    public: Images | None = None
    coarse: tuple[int, ...] | None = None
    ordered: bool = False
    encoding: str = ""
    columns: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all samples (public ones too), labels and names."""
        facts = (self.name, self.classes, self.mean, self.std, self.task)
        digest = hashlib.sha256(repr(facts).encode())
        for domain in self.domains:
            digest.update(f"{domain.name}|{domain.origin}".encode())
            for array in (domain.train_x, domain.train_y, domain.test_x, domain.test_y):
                digest.update(f"{array.shape}{array.dtype}".encode())
                add_bytes(digest, array)
        if self.public is not None:
            digest.update(f"public{self.public.shape}{self.public.dtype}".encode())
            add_bytes(digest, self.public)
        if self.coarse is not None:
            digest.update(f"coarse{self.coarse}".encode())
        return digest.hexdigest()


class _ZeroCopyPickle:
    """Lets the large array `x` go from process to process without a copy although it is not contiguous as [n, C, H, W].

    Ray shares contiguous arrays only, so what is pickled is the array as it lies in memory. An
    array that lies in a file (`flray.data.sources.image_sets`) stays there, and only the file's
    name goes.
    """

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if state["x"].ndim == 4 and not state["x"].flags.c_contiguous:
            lying = np.moveaxis(state.pop("x"), 1, -1)
            file = backing_file(lying)
            state["x as it lies" if file is None else "x in a file"] = (
                lying if file is None else file
            )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        if "x in a file" in state:
            file = state.pop("x in a file")
            with explained(
                OSError,
                f"{file}: cannot be read on this node",
                "put $FLRAY_DATA on a file system that all nodes share, set data.mapped to false, or resources.data "
                "to node",
            ):
                state["x as it lies"] = np.asarray(np.load(file, "r", allow_pickle=False))
        if "x as it lies" in state:
            state["x"] = np.moveaxis(state.pop("x as it lies"), -1, 1)
        self.__dict__.update(state)


@dataclass(frozen=True)
class Pooled(_ZeroCopyPickle):
    """The samples of all domains one after another: the large part of a federation's data, whatever the partition.

    Attributes
    ----------
    x : ndarray [n, ...]
        All training parts in domain order, then all test parts. The channels of a pixel of an image
        lie side by side in memory, because networks are fastest in this layout.
    y : ndarray of int64 [n] or of uint8 [n, K, H, W]
        Labels or masks.
    public : ndarray of uint8 or None
        The data set's public samples.
    """

    x: Array
    y: Labels
    public: Images | None = None

    @classmethod
    def of(cls, dataset: DataSet) -> Self:
        """Return a data set's samples in one array, copied unless they are one already."""
        domains = dataset.domains
        parts = [d.train_x for d in domains] + [d.test_x for d in domains]
        if parts[0].ndim == 4:
            moved = [np.moveaxis(part, 1, -1) for part in parts]
            lying = join_parts(moved)
            if lying is None:
                lying = np.empty((sum(map(len, parts)), *moved[0].shape[1:]), moved[0].dtype)
                np.concatenate(moved, out=lying)
            x = np.moveaxis(lying, -1, 1)
        else:
            x = np.concatenate(parts)
        labels: Array = np.concatenate([d.train_y for d in domains] + [d.test_y for d in domains])
        return cls(x, labels.astype(np.int64) if labels.ndim == 1 else labels, dataset.public)


@dataclass(frozen=True)
class ClientIndices:
    """The samples of one client, as rows of `FederatedData.x`.

    Attributes
    ----------
    name : str
        Unique; the domain's name if the client is a domain.
    domain : str
        The domain that its samples come from (``"pooled"`` if they come from several).
    train, val, test : ndarray of int64
        Row indices; `val` may be empty.
    """

    name: str
    domain: str
    train: Ints
    val: Ints
    test: Ints


@dataclass(frozen=True)
class FederatedData(_ZeroCopyPickle):
    """All samples once, and the clients that hold them.

    Attributes
    ----------
    x : ndarray [n, ...]
        uint8 images [n, C, H, W], or float features.
    y : ndarray of int64 [n] or of uint8 [n, K, H, W]
        Labels, or for segmentation masks.
    clients : tuple of ClientIndices
        In client order; their training parts are disjoint, their test parts too.
    test : ndarray of int64
        The common test set: all clients' test parts one after another.
    noise : ndarray of float32 [n] or None
        Standard deviation of the Gaussian noise on each sample, in units of normalised inputs.
    unseen : tuple of ClientIndices
        Clients that do not train and serve for tests alone; they are not among `clients`.
    encoding, columns : str, mapping
        Those of the data set.
    """

    dataset: str
    x: Array
    y: Labels
    clients: tuple[ClientIndices, ...]
    test: Ints
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    task: str
    origins: dict[str, Origin]
    fingerprint: str
    public: Images | None = None
    noise: Singles | None = None
    unseen: tuple[ClientIndices, ...] = ()
    encoding: str = ""
    columns: Mapping[str, list[dict[str, Any]]] = field(default_factory=dict)

    @cached_property
    def partition_fingerprint(self) -> str:
        """SHA-256 (hex) of who holds which rows, and with how much noise."""
        digest = hashlib.sha256()
        for number, client in enumerate(self.everyone):
            if number == len(self.clients):
                digest.update(b"unseen|")
            digest.update(f"{client.name}|{client.domain}".encode())
            for part in (client.train, client.val, client.test):
                digest.update(np.ascontiguousarray(part, dtype="<i8").tobytes() + b"|")
        if self.noise is not None:
            digest.update(np.ascontiguousarray(self.noise, dtype="<f4").tobytes())
        return digest.hexdigest()

    @cached_property
    def everyone(self) -> tuple[ClientIndices, ...]:
        """The clients, then those that do not train, whose numbers follow."""
        return (*self.clients, *self.unseen)

    @cached_property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def positive(self) -> str | None:
        """The class that sensitivity, F1 and so on are about; None unless the task is binary."""
        return str(self.classes[1]) if self.task == "binary" else None

    @property
    def words(self) -> dict[str, str]:
        """The words of records, reports and exported models on the data: positive class, encoding."""
        told = {"positive": self.positive or "", "encoding": self.encoding}
        return {name: text for name, text in told.items() if text}

    @property
    def validation(self) -> Ints:
        """All clients' validation parts one after another."""
        return np.concatenate([client.val for client in self.clients])

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def has_classes(self) -> bool:
        """Whether every sample has a class, not masks, numbers or flags."""
        return self.y.ndim == 1

    def class_counts(self) -> Ints:
        """Training samples of each class at each client, int64 [K, C].

        Raises
        ------
        DataError
            If samples have no classes.
        """
        if not self.has_classes:
            raise DataError(
                f"data set {self.dataset}: samples of {self.task} have no classes to count"
            )
        return np.stack(
            [np.bincount(self.y[c.train], minlength=self.num_classes) for c in self.clients]
        )

    def class_table(self) -> tuple[tuple[str, ...], Ints]:
        """The classes and their counts, int64 [K, C]; samples without classes are all of one kind, C = 1."""
        if self.has_classes:
            return self.classes, self.class_counts()
        what = "targets" if self.y.ndim == 2 else "masks of"
        return (f"with {what} {', '.join(self.classes)}",), np.array(
            [[len(client.train)] for client in self.clients]
        )


def label_placeholders(labels: Labels) -> Labels:
    """Return labels without what is large: masks lose their structures but not their number."""
    return labels if labels.ndim <= 2 else labels[:, :0]
