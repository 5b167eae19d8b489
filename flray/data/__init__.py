"""Data sets, partitions, augmentations and the federation's data; nothing here imports torch but the augmentations."""

from flray.data.federated import federate
from flray.data.inventory import FETCHABLE, get
from flray.data.loading import load_dataset
from flray.data.sources.cache import data_root
from flray.data.sources.images import channel_statistics
from flray.data.types import ClientIndices, DataSet, Domain, FederatedData

__all__ = ["FETCHABLE", "ClientIndices", "DataSet", "Domain", "FederatedData", "channel_statistics"]
__all__ += ["data_root", "federate", "get", "load_dataset"]
