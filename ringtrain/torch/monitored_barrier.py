"""PyTorch's monitored barrier, by the store alone: where a rank does not come, a collective would hang."""

import time
from collections.abc import Sequence
from datetime import timedelta

from ringtrain.errors import StalledError


class MonitoredBarrier:
    """The ``number``-th of a group, which has a store of its own. Raises StalledError after ``timeout_s``."""

    def __init__(self, store, number: int, timeout_s: float):
        self._store, self._timeout_s = store, timeout_s
        self._name, self._until = f"monitored barrier {number}", time.monotonic() + timeout_s

    def come(self, rank: int) -> None:
        """Come as a rank other than 0, and wait until rank 0 releases all."""
        self._store.set(self._key(rank), "")
        if not self._is_set(self._key("all")) or self._store.get(self._key("all")):
            raise StalledError(
                f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
                "from rank 0. Please check rank 0 logs for faulty rank"
            )

    def release(self, ranks: Sequence[int], wait_all_ranks: bool) -> None:
        """Wait for the other ranks as rank 0, and release them. Names the first that does not come; with
        ``wait_all_ranks`` all that do not.
        """
        late: list[int] = []
        for rank in ranks:
            if (wait_all_ranks or not late) and not self._is_set(self._key(rank)):
                late.append(rank)
        self._store.set(self._key("all"), "late" if late else "")
        if late:
            named = f"Rank{'s' if wait_all_ranks else ''} {', '.join(map(str, late))}"
            raise StalledError(
                f"{named} failed to pass monitoredBarrier in {self._timeout_s:g} s: Rank 0 timed out in "
                "monitoredBarrier. See where they are"
            )

    def _key(self, rank: int | str) -> str:
        return f"{self._name}: {rank}"

    def _is_set(self, key: str) -> bool:
        """Return whether a key is in the store in time."""
        try:
            left_s = max(0.001, self._until - time.monotonic())  # with 0 PyTorch's FileStore waits for ever
            self._store.wait([key], timedelta(seconds=left_s))
        except RuntimeError:  # of FileStore; others raise a DistStoreError, which is one
            return False
        return True
