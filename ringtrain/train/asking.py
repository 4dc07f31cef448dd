"""Whether any rank was told to stop, where no sums over ranks say it."""

from collections.abc import Callable

import numpy as np

from ringtrain.transport.base import Handle, Transport


def never() -> bool:
    return False


class Asked:
    """Whether any rank was told to stop, a question late: each is answered when the next one is put, so that nobody
    waits for it. Every rank puts as many. Collective.

    told_to_stop: of this rank
    """

    def __init__(self, transport: Transport, told_to_stop: Callable[[], bool], deadline_s: float):
        self._transport, self._told_to_stop, self._deadline_s = transport, told_to_stop, deadline_s
        self._sum = np.zeros(1)
        self._pending: Handle | None = None

    def __call__(self) -> bool:
        stop = self.answer()
        self._sum[0] = self._told_to_stop()
        self._pending = self._transport.native_allreduce_start(self._sum)
        return stop

    def answer(self) -> bool:
        """To the last question, now."""
        if self._pending is None:
            return False
        self._pending.wait(self._deadline_s)
        self._pending = None
        return self._sum[0] > 0
