"""Values in a log: what a file may make of itself."""

import dataclasses

import orjson
import pytest

from plr_dspy.scoring.values import Unreadable, ValueCodec


@dataclasses.dataclass
class Point:
    x: int


@pytest.mark.parametrize("content", [["builtins.dict", [], {}], [f"{__name__}.Point", [], {"x": 1}]])
def test_a_file_makes_no_object_of_a_class_that_was_not_supplied(content):
    with pytest.raises(Unreadable):
        ValueCodec().decode({"$type": "object", "of": content})


def test_a_file_makes_objects_of_supplied_classes():
    data = {"$type": "object", "of": [f"{__name__}.Point", [], {"x": 1}]}
    codec = ValueCodec([Point])
    assert codec.encode(Point(1)) == data
    assert codec.decode(data) == Point(1)


@pytest.mark.parametrize("data", [{"$type": "ndarray", "of": ["QUE=", "|O", [1]]}, {"$type": "timedelta", "of": 3}])
def test_other_tags_and_contents_are_refused(data):
    with pytest.raises(ValueError, match="type"):
        ValueCodec().decode(data)


@pytest.mark.parametrize("value", ["\ud83d", {"\ud83d": 1}, [("\ud83d",)]])
def test_half_of_a_character_is_read_back(value):
    """No file in UTF-8 can hold it as it is."""
    data = ValueCodec().encode(value)
    assert "ud83d" not in orjson.dumps(data).decode()
    assert ValueCodec().decode(data) == value
