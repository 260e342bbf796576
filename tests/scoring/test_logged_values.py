"""Values in a log: what a file may make of itself."""

import dataclasses

import orjson
import pytest

from plr_dspy.scoring.values import Unreadable, Unwritable, ValueCodec


@dataclasses.dataclass
class Point:
    x: int


POINT = {"$type": f"{__name__}.Point", "of": {"x": 1}}


@pytest.mark.parametrize("data", [POINT, {"$type": "builtins.dict", "of": {}}])
def test_a_file_makes_no_object_of_a_class_that_was_not_supplied(data):
    with pytest.raises(Unreadable):
        ValueCodec().decode(data)


def test_a_file_makes_objects_of_supplied_classes():
    codec = ValueCodec([Point])
    assert codec.encode(Point(1)) == POINT
    assert codec.decode(POINT) == Point(1)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: int
    more: list[int] = dataclasses.field(init=False)


def test_dataclasses_with_slots_are_kept_unless_a_field_is_not_set():
    codec = ValueCodec([Slotted])
    value = Slotted(1)
    with pytest.raises(Unwritable):
        codec.encode(value)
    object.__setattr__(value, "more", [2])
    assert codec.decode(codec.encode(value)) == value


def test_a_class_with_another_field_is_refused():
    data = {**POINT, "of": {"y": 1}}
    with pytest.raises(Unreadable, match="has changed"):
        ValueCodec([Point]).decode(data)


def test_a_value_that_contains_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(Unwritable):
        ValueCodec().encode(value)


@pytest.mark.parametrize("value", ["\ud83d", {"\ud83d": 1}, [("\ud83d",)]])
def test_half_of_a_character_is_read_back(value):
    """No file in UTF-8 can hold it as it is."""
    data = ValueCodec().encode(value)
    assert ValueCodec().decode(orjson.loads(orjson.dumps(data))) == value
