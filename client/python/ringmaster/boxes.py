"""Boxes: which part of a tensor somebody holds or wants. Pure.

A tensor that is spread over ranks is cut into boxes along its axes. Ranks of another number want other boxes; what they take of the
ones that were saved are the intersections.
"""

import math
from typing import List, NamedTuple, Optional, Sequence, Tuple


class Box(NamedTuple):
    """A part of a tensor: where it begins on each axis, and how far it goes."""

    offset: Tuple[int, ...]
    shape: Tuple[int, ...]


def whole(shape: Sequence[int]) -> Box:
    return Box((0,) * len(shape), tuple(shape))


def fits(box: Box, shape: Sequence[int]) -> bool:
    """Whether it lies within a tensor of this shape."""
    return len(box.offset) == len(box.shape) == len(shape) and all(
        begin >= 0 and length >= 0 and begin + length <= limit for begin, length, limit in zip(box.offset, box.shape, shape)
    )


def intersect(a: Box, b: Box) -> Optional[Box]:
    """What two boxes of one tensor have in common, None: nothing."""
    offset = tuple(max(x, y) for x, y in zip(a.offset, b.offset))
    shape = tuple(
        min(x + n, y + m) - begin for x, n, y, m, begin in zip(a.offset, a.shape, b.offset, b.shape, offset)
    )
    return Box(offset, shape) if min(shape, default=1) > 0 else None


def slices(box: Box, within: Box) -> Tuple[slice, ...]:
    """Where a box lies in an array that holds another one around it."""
    return tuple(slice(x - y, x - y + n) for x, n, y in zip(box.offset, box.shape, within.offset))


def uncovered(shape: Sequence[int], boxes: Sequence[Box]) -> Optional[str]:
    """What is wrong when boxes do not make up a tensor of this shape, each element in exactly one of them; None: they do."""
    for box in boxes:
        if not fits(box, shape):
            return f"the part at {list(box.offset)} of shape {list(box.shape)} does not lie within {list(shape)}"
    filled = sorted(box for box in boxes if math.prod(box.shape) > 0)
    active: List[Box] = []  # that reach to the first row of the one looked at, or farther
    for box in filled:
        active = [other for other in active if not shape or other.offset[0] + other.shape[0] > box.offset[0]]
        for other in active:
            if intersect(box, other) is not None:
                return f"the parts at {list(other.offset)} and {list(box.offset)} overlap"
        active.append(box)
    held, needed = sum(math.prod(box.shape) for box in filled), math.prod(shape)
    return None if held == needed else f"its parts hold {held} of {needed} elements"
