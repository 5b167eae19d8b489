"""Data sets, partitions, augmentations and the federation's data; importing this package registers what is built in."""

import importlib
import pkgutil

from flray.data import augment, datasets, geometric, partitions, public
from flray.data.federated import federate
from flray.data.fetching import FETCHABLE, get
from flray.data.loading import load_dataset
from flray.data.sources.cache import data_root
from flray.data.sources.images import channel_statistics
from flray.data.types import ClientIndices, DataSet, Domain, FederatedData

__all__ = [
    "FETCHABLE",
    "ClientIndices",
    "DataSet",
    "Domain",
    "FederatedData",
    "augment",
    "channel_statistics",
    "data_root",
    "datasets",
    "federate",
    "geometric",
    "get",
    "load_dataset",
    "partitions",
    "public",
]

for _module in pkgutil.iter_modules(datasets.__path__, f"{datasets.__name__}."):
    importlib.import_module(_module.name)
