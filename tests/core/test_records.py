"""Records: what they share with frozen dataclasses, and their errors."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from turnout.records import record


@record
class Point:
    """A record for the tests."""

    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list, compare=False)
    note: str = field(default="", repr=False)

    origin: ClassVar[int] = 0


@record
class Point3(Point):
    z: int = 3


@dataclass(frozen=True)
class Plain:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list, compare=False)
    note: str = field(default="", repr=False)


@record
class Checked:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("negative")


@record
class Own:
    """Methods of the class itself are kept."""

    number: int

    def __repr__(self) -> str:
        return f"<{self.number}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and abs(self.number) == abs(other.number)

    def __hash__(self) -> int:
        return abs(self.number)


@record
class Empty:
    pass


@pytest.mark.parametrize(
    ("values", "named"),
    [((1,), {}), ((1, 5), {}), ((1, 5, ["a"], "n"), {}), ((), {"y": 4, "x": 3}), ((1,), {"y": 4})],
)
def test_a_record_is_what_a_frozen_dataclass_is(
    values: tuple[Any, ...], named: dict[str, Any]
) -> None:
    own, plain = Point(*values, **named), Plain(*values, **named)
    assert dataclasses.asdict(own) == dataclasses.asdict(plain)
    assert repr(own) == repr(plain).replace("Plain", "Point")
    assert hash(own) == hash(plain)
    assert own == Point(*values, **named)
    assert own != plain
    assert dataclasses.replace(own, x=9).x == 9
    match own:
        case Point(x, y):
            assert (x, y) == (plain.x, plain.y)


def test_equality_is_that_of_the_compared_fields_and_of_one_class() -> None:
    assert Point(1, 2, ["a"]) == Point(1, 2, ["b"])
    assert Point(1) != Point(2)
    assert Point3(1) != Point(1)
    assert Empty() == Empty()
    assert len({Point(1), Point(1, 2), Point(3), Empty(), Empty()}) == 3


def test_fields_are_inherited() -> None:
    assert Point3(1, 2, [], "", 4).z == 4
    assert [each.name for each in dataclasses.fields(Point3)] == ["x", "y", "tags", "note", "z"]


def test_each_record_has_a_default_of_its_own() -> None:
    assert Point(1).tags is not Point(1).tags


def test_a_record_is_frozen() -> None:
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Point is frozen: .* assign to 'x'"):
        point.x = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Point is frozen: .* delete 'x'"):
        del point.x
    assert point.x == 1


def test_records_are_copied_and_pickled() -> None:
    point = Point(1, note="n")
    for other in (copy.copy(point), copy.deepcopy(point), pickle.loads(pickle.dumps(point))):
        assert other == point
        assert other.note == "n"


def test_what_a_class_defines_itself_is_kept() -> None:
    assert repr(Own(3)) == "<3>"
    assert Own(3) == Own(-3)
    assert len({Own(3), Own(-3)}) == 1
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ((), {}, "Point needs a value for its field x"),
        ((1, 2, [], "", 5), {}, "Point has 4 fields, 5 values given"),
        ((1,), {"x": 2}, "Point: x is given twice"),
        ((1,), {"z": 2, "q": 1}, "Point has no field q, z"),
    ],
)
def test_wrong_values_are_refused(
    values: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        Point(*values, **named)
