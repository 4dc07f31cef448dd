"""A rank in front of a pipeline: it holds the layers before the fully connected ones, which the strategy of ``--sync``
exchanges among these ranks, and the whole network for evaluations and checkpoints."""

from collections.abc import Callable

from ringtrain.arrays import Array
from ringtrain.exchange.base import Exchange, Lag, Serving
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel
from ringtrain.exchange.model_parallel.divided_state import DividedState
from ringtrain.exchange.model_parallel.pipeline import MessageServing, Pipeline
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.nn.arena import Arena, beginning
from ringtrain.nn.base import Span
from ringtrain.optim.optimizers import Optimizer


class PipelineFront(Pipeline):
    """Exchanges its layers by the strategy ``inner``, which knows the ranks in front alone."""

    serving: "FrontServing"

    def __init__(self, settings: ExchangeSettings, mail: ActivationChannel, inner: Exchange):
        super().__init__(settings, mail, inner.facts)
        self._inner, self.batches = inner, inner.batches

    def _bind(self, arena: Arena, optimizer: Optimizer) -> tuple[list[str], int | None]:
        inner, ops, part = self._inner, self.settings.ops, self.table.part
        part.bind(arena)
        self._arena, self._front_names = arena, frozenset(name for name, _ in part.parameters())
        front = beginning(arena, len(self._front_names))
        inner.bind(front, type(optimizer)(front.spans, optimizer.hyper))
        gather = self._gather
        self.owned_state = DividedState(
            ops,
            inner.owned_state,
            arena,
            front.count,
            optimizer.slots,
            gather=lambda name, flat: gather.gather(None, flat),
        )
        self.reducers = inner.reducers.with_messages(self.mail)
        self.ready_points, self.wait_points = inner.ready_points, inner.wait_points
        self.serving, self.rehearsed = FrontServing(inner.serving), inner.rehearsed
        return [*inner.facts.notes], inner.facts.state_bytes

    def denominator(self, local: float, total: float) -> float:
        return self._inner.denominator(local, total)

    def before(self, iteration: int, examples: int, total: int) -> None:
        self.serving.drained = False
        self._inner.before(iteration, examples, total)

    def before_read(self, span: Span) -> None:
        if span.name in self._front_names:
            self._inner.before_read(span)

    def grad_ready(self, span: Span) -> None:
        if span.name in self._front_names:
            self._inner.grad_ready(span)

    def finish(self, iteration: int, lr: float) -> None:
        super().finish(iteration, lr)
        self._inner.finish(iteration, lr)

    def _synchronize_front(self) -> None:
        self._inner.synchronize()

    def _weights(self) -> tuple[Array | None, Array | None]:
        return None, self._arena.weights


class FrontServing(MessageServing):
    """The service of a rank in front, by the strategy there. ``say_goodbye``: tells the ranks behind that no
    message comes until the next meeting is over; the stage of this rank sets it."""

    def __init__(self, inner: Serving):
        self._inner, self.drained = inner, False
        self.say_goodbye: Callable[[], None] = lambda: None

    def poll(self) -> None:
        self._inner.poll()

    def drain_peers(self) -> None:
        self._inner.drain_peers()
        if not self.drained:
            self.say_goodbye()
        self.drained = True

    def meet(self) -> None:
        self.drain_peers()
        self.drained = False

    def serve(self, meanwhile: Callable[[], None]) -> None:
        self._inner.serve(meanwhile)

    def lag(self) -> Lag | None:
        return self._inner.lag()
