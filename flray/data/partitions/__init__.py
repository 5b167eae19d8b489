"""Who gets which training samples: pure functions from labels and a seed to one list of rows per client.

A partition's positional parameters are filled in by name (``labels`` int64 [n]; ``domains`` int64
[n], domain ids; ``superclasses`` int64 [n], the coarse class of each sample where the data set has
one; ``seed``); it declares the ones it needs. Its keyword-only parameters are its options in the
YAML file. It returns one sorted int64 array of rows per client; no row twice. Rows that it gives to
nobody take their share of the test samples with them. A partition that takes ``domains`` keeps
clients to their domain, any other one pools all domains. ``file`` alone is given who tests on what too.

Data whose clients are sites (hospitals, recordings) have these sites as domains: ``domains`` is
their partition.
"""

from flray.data.partitions.builtin import *
from flray.data.partitions.given import *
