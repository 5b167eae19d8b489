"""Data sets, partitions and the federation's data; importing this package registers what is built in."""

from flray.data import builtin, partitions
from flray.data.cache import data_root
from flray.data.federate import federate, load_dataset
from flray.data.types import ClientIndices, DataSet, Domain, FederatedData

__all__ = ["ClientIndices", "DataSet", "Domain", "FederatedData", "builtin", "data_root", "federate", "load_dataset",
           "partitions"]
