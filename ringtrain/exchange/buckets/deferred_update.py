"""The update of each bucket when its sum has arrived: after backward or in the next forward."""

from collections.abc import Callable, Sequence

from ringtrain.exchange.buckets.reducer import Reducer
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.exchange.update.loss_scale import LossScale
from ringtrain.exchange.update.owned_update import OwnedUpdate
from ringtrain.memory.buckets import Bucket
from ringtrain.memory.spans import Span

NONE, BACKWARD, FORWARD = "none", "backward", "forward"


class BucketUpdater:
    """Updates the weights of each bucket when its sum has arrived.

    sums:    of the gradients, over the whole arena
    whole:   update all buckets at once, when the last sum has arrived: whenever another rank dies, this rank has the
             state of a finished iteration
    updated: called with the index of each bucket that is updated, and ``exposed``, as in :meth:`Reducer.test`
    order:   of the indices of buckets, in which :meth:`finish` updates them; None: that of the sums' starts
    later:   whether overlap FORWARD has a meaning here

    With overlap FORWARD :meth:`finish` leaves each bucket's update to :meth:`before_read`. A norm, and the check for
    overflow, need every sum: with a clipping norm, a loss scale or ``whole`` it acts as BACKWARD, and ``note`` says so.
    """

    def __init__(
        self,
        settings: ExchangeSettings,
        update: OwnedUpdate,
        sums: Reducer,
        whole: bool = False,
        updated: Callable[[int, bool], None] = lambda index, exposed: None,
        order: Sequence[int] | None = None,
        later: bool = True,
    ):
        self._update, self._sums, self._updated = update, sums, updated
        self._whole = whole or update.needs_all
        self._order = sums.order if order is None else order
        forward = later and settings.config.overlap == FORWARD
        self._later = forward and not self._whole and settings.transport.size > 1  # a rank alone has nothing to hide
        self.note = _fallback(settings.clip_norm, settings.scale) if forward and self._whole else None
        self._complete = False  # whether all sums of this iteration have arrived
        self._owed: set[int] = set()  # indices of buckets that before_read() updates

    def complete(self) -> None:
        """Wait for all sums; :meth:`finish` updates by them as they are then. Gradients are final, announced or
        not."""
        if not self._complete:
            self._sums.wait_all()
            self._complete = True

    def finish(self, lr: float) -> None:
        """Update the buckets: as they arrive, all at once, or later. Gradients are final, announced or not."""
        if self._whole:
            self.complete()
        self._update.begin(lr)  # a rank that dies before leaves the state of the last iteration
        if self._complete:
            self._complete = False
            for index in self._order:
                self._apply(index, self._sums.buckets[index])
            return
        self._sums.start()
        if self._later:
            self._owed = set(range(len(self._sums.buckets)))
            return
        for index in self._order:
            self._apply(index, self._sums.arrive(index))

    def before_read(self, span: Span) -> None:
        """Update the span's bucket, unless it is current."""
        index = self._sums.index_of[span.name]
        if index in self._owed:
            self._wait(index)

    def apply_landed(self, exposed: bool) -> None:
        """Update every bucket that is not current and whose sum has arrived, the lowest first, without waiting.
        ``exposed``: as in :meth:`Reducer.test`."""
        if not self._owed:
            return
        self._sums.test(exposed)
        for index in [index for index in sorted(self._owed, reverse=True) if self._sums.has_landed(index)]:
            self._owed.remove(index)
            self._apply(index, self._sums.take(index), exposed)

    @property
    def wait_points(self) -> frozenset[str]:
        """Names of the spans that :meth:`before_read` may wait for: the first of each bucket."""
        return self._sums.ready_points if self._later else frozenset()

    def synchronize(self) -> None:
        """Update every bucket that is not current."""
        for index in sorted(self._owed, reverse=True):  # as forward needs them: all ranks wait in one order
            if index in self._owed:  # a wait for another may have updated it
                self._wait(index)

    def _wait(self, index: int) -> None:
        self._owed.remove(index)
        self._apply(index, self._sums.arrive(index))

    def _apply(self, index: int, bucket: Bucket, exposed: bool = True) -> None:
        self._update.apply(bucket.start, bucket.stop)
        self._updated(index, exposed)


def _fallback(clip_norm: float | None, scale: LossScale | None) -> str:
    if clip_norm is None and scale is None:
        return "--overlap forward is backward here: with --elastic no update is left half done"
    quantity = "whether the gradient of a scaled loss (--precision float16) is finite"
    if clip_norm is not None:
        quantity = f"the factor of --clip-norm {clip_norm:g}"
    return f"--overlap forward is backward here: {quantity} is known when all gradients have arrived"
