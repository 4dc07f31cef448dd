"""What reductions use of a device's operations, over a runtime that is not there: late, in the order of a stream."""

import numpy as np

from tests.fakes.device import DeviceRefusal


class Point:
    """A mark."""

    def __init__(self, event):
        self.event, self.done, self.wait = event, event.done, event.wait


class Arithmetic:
    """Adds on the memory of ``runtime``, which it alone may see, and of others that it has opened."""

    def __init__(self, runtime):
        self._runtime, self._stream = runtime, runtime.stream()

    def copy(self, x, y):
        self._runtime.copy(x, y, self._stream)

    def add(self, a, b, y):
        self.add_all([a, b], [y])

    def add_all(self, sources, targets):
        if not (1 <= len(sources) <= 8 and 1 <= len(targets) <= 8):
            raise DeviceRefusal(f"add_all of {len(sources)} sources to {len(targets)} targets; it takes 1 to 8")
        if len({(x.size, x.dtype) for x in (*sources, *targets)}) > 1:
            raise DeviceRefusal("add_all of arrays that are not alike")
        read, written = ([self._runtime._memory(x) for x in own] for own in (sources, targets))
        self._stream.issue("add_all", lambda: _add_all(read, written))

    def scale(self, x, factor):
        memory = self._runtime._memory(x)
        self._stream.issue("scale", lambda: np.multiply(memory, memory.dtype.type(factor), out=memory))

    def upload(self, host, x):
        self._runtime.upload(host, x, self._stream)

    def to_host(self, x):
        host = np.zeros(x.shape, x.dtype)
        self._runtime.download(x, host, self._stream)
        return host

    def synchronize(self):
        self._stream.synchronize()

    def mark(self):
        return Point(self._stream.record())

    def beside(self):
        return self

    def after(self, mark):
        self._stream.after(mark.event)


def _add_all(read, written):
    total = read[0].copy()
    for x in read[1:]:
        total += x
    for y in written:
        np.copyto(y, total)
