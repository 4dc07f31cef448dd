"""Messages in fewer bits than the elements they are about: packed when they are sent, unpacked or added on arrival."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Wire:
    """How float32 elements travel. Arrays are flat and of equal size; packed ones have the wire's own type.

    name:   of the numbers that travel
    dtype:  NumPy's, of what is packed
    pack:   pack(x, packed): packed = x, rounded; to pack what was unpacked changes nothing
    unpack: unpack(packed, x): x = packed
    add:    add(packed, x): x += packed, in float32
    """

    name: str
    dtype: object
    pack: Callable
    unpack: Callable
    add: Callable
