"""Type aliases for arrays."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.int64]
