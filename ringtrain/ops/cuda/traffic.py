"""The bytes that operations which do little else than move them move at the least: what their time is measured against.

Each array goes once between processors and memory, unless told here: statistics must be known before they are used, so
what they are made of is read twice. A small array may be in the cache the second time, which makes it faster than that.
"""

# Operation: {array: how often without ``relu``, and with}.
PASSES = {
    "batch_norm": {"x_NHWC": (2, 2)},
    "batch_norm_back": {"x_NHWC": (2, 2), "dy_NHWC": (2, 2), "y_NHWC": (0, 2)},
    "batch_norm_sums": {"dy_NHWC": (1, 2), "y_NHWC": (0, 1)},  # dy is masked in place
    "batch_norm_shares": {"x_NHWC": (0, 0)},  # its shape alone counts
    "finish": {"y": (2, 2)},
    "unfinish": {"dy": (1, 2), "y": (0, 1)},
    "orthonormalise": {"x_MR": (2, 2)},
}
# Of take_largest, by the bytes of an element: to find the k-th largest, to count what is taken, and to take it.
TAKE_PASSES = {4: 3 + 2, 8: 6 + 2}


def bytes_of(operation: str, arrays: dict, relu: bool = False) -> int:
    """``arrays``: by the names of the operation's parameters, or lists of arrays; None for one that is not wanted.
    ``finish`` and ``unfinish`` are those of :class:`ringtrain.ops.cuda.channels.Channels`."""
    given = {name: x if isinstance(x, list | tuple) else [x] for name, x in arrays.items() if x is not None}
    return sum(
        _times(operation, name, x, given, relu) * x.size * x.dtype.itemsize for name in given for x in given[name]
    )


def _times(operation, name, x, given, relu):
    if operation == "take_largest" and name == "x":
        return TAKE_PASSES[x.dtype.itemsize]
    times = PASSES.get(operation, {}).get(name, (1, 1))[relu]
    only_sums = operation == "batch_norm_back" and "dx_NHWC" not in given
    return min(times, 1) if only_sums else times
