"""Restored and rejected values in a log file."""

import dataclasses

import orjson
import pytest

from plr_dspy.scoring.values import Unreadable, Unwritable, ValueCodec


@dataclasses.dataclass
class Point:
    x: int


POINT = {"$type": f"{__name__}.Point", "of": {"x": 1}}


@pytest.mark.parametrize("data", [POINT, {"$type": "builtins.dict", "of": {}}])
def test_objects_of_unlisted_classes_are_not_created(data):
    with pytest.raises(Unreadable):
        ValueCodec().decode(data)


def test_objects_of_listed_classes_are_restored():
    codec = ValueCodec([Point])
    assert codec.encode(Point(1)) == POINT
    assert codec.decode(POINT) == Point(1)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: int
    more: list[int] = dataclasses.field(init=False)


def test_dataclasses_with_slots_are_restored_unless_a_field_is_unset():
    codec = ValueCodec([Slotted])
    value = Slotted(1)
    with pytest.raises(Unwritable):
        codec.encode(value)
    object.__setattr__(value, "more", [2])
    assert codec.decode(codec.encode(value)) == value


def test_a_class_with_another_field_is_rejected():
    data = {**POINT, "of": {"y": 1}}
    with pytest.raises(Unreadable, match="has changed"):
        ValueCodec([Point]).decode(data)


def test_a_value_that_contains_itself_is_rejected():
    value = []
    value.append(value)
    with pytest.raises(Unwritable):
        ValueCodec().encode(value)


@pytest.mark.parametrize("value", ["\ud83d", {"\ud83d": 1}, [("\ud83d",)]])
def test_lone_surrogates_are_restored(value):
    """UTF-8 cannot encode lone surrogates, but a log must be able to store them."""
    data = ValueCodec().encode(value)
    assert ValueCodec().decode(orjson.loads(orjson.dumps(data))) == value
