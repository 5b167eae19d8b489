"""Types of the arrays that data are made of."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = dict[str, Array]
Rows: TypeAlias = NDArray[np.int64]
Images: TypeAlias = NDArray[np.uint8]
Labels: TypeAlias = NDArray[np.int64] | NDArray[np.uint8]
