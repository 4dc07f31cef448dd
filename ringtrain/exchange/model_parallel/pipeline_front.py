"""A rank in front of a pipeline: it holds the layers before the fully connected ones, which the strategy of ``--sync``
exchanges among these ranks, and the whole network for evaluations and checkpoints."""

from collections.abc import Callable
from dataclasses import replace

from ringtrain.exchange.base import Exchange, Lag, Serving
from ringtrain.exchange.model_parallel.activation_messages import ActivationChannel
from ringtrain.exchange.model_parallel.inner_exchange import WithInnerExchange
from ringtrain.exchange.model_parallel.pipeline import MessageServing, Pipeline
from ringtrain.exchange.settings import ExchangeSettings
from ringtrain.nn.arena import Arena
from ringtrain.optim.optimizers import Optimizer


class PipelineFront(WithInnerExchange, Pipeline):
    """Exchanges its layers by the strategy ``inner``, which knows the ranks in front alone."""

    serving: "FrontServing"

    def __init__(self, settings: ExchangeSettings, mail: ActivationChannel, inner: Exchange):
        super().__init__(settings, mail, inner.facts)
        self._inner, self.batches = inner, inner.batches

    def bind(self, arena: Arena, optimizer: Optimizer) -> None:
        notes, inner, part = self._begin_bind(arena), self._inner, self.table.part
        part.bind(arena)
        self._bind_inner(
            self.settings.ops,
            arena,
            optimizer,
            len(part.parameters()),
            messages=self.mail,
            gather=lambda name, flat: self._gather.gather(flat),
        )
        self.serving, self.rehearsed = FrontServing(inner.serving), inner.rehearsed
        self.facts = replace(self.facts, notes=[*notes, *inner.facts.notes], state_bytes=inner.facts.state_bytes)

    def before(self, iteration: int, examples: int, total: int) -> None:
        self.serving.drained = False
        self._inner.before(iteration, examples, total)

    def finish(self, iteration: int, lr: float) -> None:
        super().finish(iteration, lr)
        self._inner.finish(iteration, lr)

    def synchronize(self) -> None:
        self.serving.meet()
        self._inner.synchronize()
        self._gather_weights()


class FrontServing(MessageServing):
    """The service of a rank in front, by the strategy there. ``say_goodbye``: tells the ranks behind that no
    message comes until the next meeting is over; the stage of this rank sets it."""

    def __init__(self, inner: Serving):
        self._inner = inner
        self.say_goodbye: Callable[[], None] = lambda: None

    def poll(self) -> None:
        self._inner.poll()

    def lag(self) -> Lag | None:
        return self._inner.lag()

    def end(self) -> None:
        self._inner.drain_peers()
        self.say_goodbye()

    def serve(self, meanwhile: Callable[[], None]) -> None:
        self.drained = False
        self._inner.serve(meanwhile)
