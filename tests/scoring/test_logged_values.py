"""Values in a log: what a file may make of itself."""

import numpy as np
import pytest

from plr_dspy.scoring.values import ValueCodec


@pytest.mark.parametrize("dtype", ["|O", "V8", [["a", "|O"]]])
def test_a_file_makes_no_array_of_objects(dtype):
    """The bytes of the file would be taken for addresses in memory, which ends the process."""
    line = {"$type": "ndarray", "of": ["QUFBQUFBQUE=", dtype, [1]]}
    with pytest.raises((TypeError, ValueError)):
        ValueCodec().decode(line)


@pytest.mark.parametrize(
    "array", [np.arange(4), np.array(["ab", "c"]), np.array(["2020-01-01"], "datetime64[D]")], ids=str
)
def test_plain_arrays_are_read_back_equal(array):
    codec = ValueCodec()
    assert np.array_equal(codec.decode(codec.encode(array)), array)
