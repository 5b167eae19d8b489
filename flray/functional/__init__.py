"""Every published formula as a pure function on tensors, by its name in the papers.

The public functions of its modules, but for those that check arguments and share pieces, are found here. They check
shapes, masks and weights. They trust settings, such as a temperature, whose ranges the methods' parameters have.
"""

from flray.functional.averaging import *
from flray.functional.class_vectors import *
from flray.functional.fedskc import *
from flray.functional.lgmix import *
from flray.functional.loss_terms import *
from flray.functional.peers import *
from flray.functional.task_losses import *
from flray.functional.whole_models import *

__all__ = sorted(
    name
    for name, item in globals().items()
    if getattr(item, "__module__", "").rpartition(".")[0] == __name__
    and item.__module__ != f"{__name__}.numerics"
)
