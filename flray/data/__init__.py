"""Data sets, partitions, augmentations and the federation's data; importing this package registers what is built in."""

from flray.data import (
    augment,
    builtin,
    camelyon,
    characters,
    cifar,
    digit_archives,
    digits5,
    domainnet,
    eeg,
    eeg_synthetic,
    folders,
    fundus,
    fundus_synthetic,
    glyphs,
    partitions,
    public,
    tiny_imagenet,
)
from flray.data.cache import data_root
from flray.data.federate import federate, load_dataset
from flray.data.get import FETCHABLE, get
from flray.data.images import channel_statistics
from flray.data.types import ClientIndices, DataSet, Domain, FederatedData

__all__ = ["FETCHABLE", "ClientIndices", "DataSet", "Domain", "FederatedData", "augment", "builtin", "camelyon",
           "channel_statistics", "characters", "cifar", "data_root", "digit_archives", "digits5", "domainnet", "eeg",
           "eeg_synthetic", "federate", "folders", "fundus", "fundus_synthetic", "get", "glyphs", "load_dataset",
           "partitions", "public", "tiny_imagenet"]
