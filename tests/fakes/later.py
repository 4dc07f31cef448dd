"""A device that is always late: what it is told is done one operation at a time, when somebody asks how far it is."""

import numpy as np


class LateMark:
    def __init__(self, device, count):
        self._device, self._count = device, count

    def done(self):
        """Says "not yet" as often as operations are missing."""
        if self._device.performed >= self._count:
            return True
        self._device.perform()
        return False

    def wait(self):
        while not self.done():
            pass


class Later:
    """What reductions use of a device, on NumPy's arrays. ``performed``: operations that were done."""

    def __init__(self):
        self._queue, self.performed = [], 0

    def later(self, function):
        """The function, as an operation of this device."""
        return lambda *arguments: self._queue.append((function, arguments))

    def copy(self, x, y):
        self._queue.append((np.copyto, (y, x)))

    def mark(self):
        return LateMark(self, self.performed + len(self._queue))

    def perform(self):
        function, arguments = self._queue.pop(0)
        function(*arguments)
        self.performed += 1
