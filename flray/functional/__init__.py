"""Every published formula as a pure function on tensors, by its name in the papers.

The public functions of its modules, `checks` and `numerics` apart, are found here.
"""

from flray.functional.averaging import *
from flray.functional.classifiers import *
from flray.functional.contrastive import *
from flray.functional.distillation import *
from flray.functional.fcclplus import *
from flray.functional.fedco2 import *
from flray.functional.fedhkd import *
from flray.functional.fedmatch import *
from flray.functional.fedskc import *
from flray.functional.few_shot import *
from flray.functional.knowledge import *
from flray.functional.lgmix import *
from flray.functional.optimisers import *
from flray.functional.penalties import *
from flray.functional.personal import *
from flray.functional.prototypes import *
from flray.functional.rhfl import *
from flray.functional.segmentation import *

__all__ = sorted(
    name
    for name, item in globals().items()
    if getattr(item, "__module__", "").rpartition(".")[0] == __name__
    and item.__module__ not in (f"{__name__}.checks", f"{__name__}.numerics")
)
