"""Data sets, partitions, augmentations and the federation's data; importing this package registers what is built in."""

from flray.data import augment, geometric, partitions, public
from flray.data.datasets import (
    camelyon,
    characters,
    cifar,
    cifar_jpeg,
    digit_archives,
    digits5,
    domainnet,
    eeg,
    eeg_synthetic,
    embedded,
    fc100,
    fundus,
    fundus_synthetic,
    glyphs,
    office_pacs_vlcs,
    tiny_imagenet,
)
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
    "camelyon",
    "channel_statistics",
    "characters",
    "cifar",
    "cifar_jpeg",
    "data_root",
    "digit_archives",
    "digits5",
    "domainnet",
    "eeg",
    "eeg_synthetic",
    "embedded",
    "fc100",
    "federate",
    "fundus",
    "fundus_synthetic",
    "geometric",
    "get",
    "glyphs",
    "load_dataset",
    "office_pacs_vlcs",
    "partitions",
    "public",
    "tiny_imagenet",
]
