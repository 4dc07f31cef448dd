"""The iterations of a rank with fully connected layers: it serves messages, runs activations forward, to the next group
of ranks or to the loss, and gradients backward, to the group before.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ringtrain.exchange.model_parallel.pipeline import IN_FLIGHT, MessageServing
from ringtrain.exchange.model_parallel.pipeline_behind import PipelineBehind
from ringtrain.nn.losses import LabelForm, Loss
from ringtrain.ops.base import Ops
from ringtrain.train.pipeline.fc_messages import BatchCut, Choice, FcMessages, Kind, PlaceMessages, messages_of
from ringtrain.train.pipeline.fc_passes import FcPasses
from ringtrain.train.step.instructions import CheckLoss, ReduceLoss, Update
from ringtrain.train.step.stage import PipelineStage, StageIteration


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve the messages of an iteration."""

    doing = "serving messages"


class FcStage(PipelineStage, MessageServing):
    """Runs the iterations of a rank with fully connected layers. ``rate``: iteration → learning rate; ``seed``: of the
    run's random numbers"""

    def __init__(
        self,
        exchange: PipelineBehind,
        ops: Ops,
        loss: Loss,
        labels: LabelForm,
        rate: Callable[[int], float],
        cut: BatchCut,
        seed: int,
    ):
        self._exchange, self._rate, self._cut = exchange, rate, cut
        self._mail, behind = exchange.mail, exchange.table.behind
        self._passes = FcPasses(exchange, ops, loss, labels, seed)
        depth, places = min(IN_FLIGHT, cut.parts), []
        for place, trainer in enumerate(exchange.facts.roles.trainers):
            numbers = range(place * depth, (place + 1) * depth)
            slots = [self._passes.make_slot(number, place, trainer, cut.capacity) for number in numbers]
            headers = self._mail.headers_from(exchange.table.before(trainer)[0], place)
            places.append(PlaceMessages(headers, slots, self._mail))
        self._messages = FcMessages(places, not exchange.apart, exchange.group, self._mail)
        self._has_loss = not behind
        announces = behind and self._messages.leads
        self._headers = {place: self._mail.headers_to(behind, place) for place in range(cut.places if announces else 0)}
        self._summed = 0  # messages since the last update
        # Since the last meeting: examples that have passed, and examples of begun iterations.
        self._examples = self._target = 0
        self._serving = False  # whether messages may come, until goodbyes

    # ── an iteration ──────────────────────────────────────────────────────────────────────────────────────────
    def begin(self, iteration: StageIteration) -> None:
        self._batch = iteration.batch

    def instructions(self, micro_batches: int) -> tuple:
        """An iteration without micro-batches of this rank's own."""
        return (Serve(), ReduceLoss(), CheckLoss(), Update())

    def run(self, instruction: object) -> None:
        """Serve the messages of this iteration, in order. If ranks are apart, serve until as many examples have passed
        as the begun iterations have, whichever they are of."""
        self._summed = 0
        if not self._exchange.apart:
            messages = messages_of(self._batch.iteration, self._batch.total, self._cut)
            self._messages.expect(messages)
            while self._summed < len(messages):
                self._run(self._messages.wait())
            return
        self._open()
        self._target += self._batch.total
        while self._examples < self._target:
            self._run(self._messages.wait())
        self._exchange.left_out = not self._summed

    def rehearse(self) -> None:
        self._passes.rehearse()

    # ── service, where ranks in front wait for no other ───────────────────────────────────────────────────────
    def _open(self) -> None:
        """Expect messages until the goodbyes of this meeting."""
        if not self._serving:
            self._messages.open()
        self._serving, self.drained = True, False

    def poll(self) -> None:
        choice = self._messages.test() if self._serving else None
        if choice is not None:
            self._run_or_end(choice)

    def end(self) -> None:
        if self._exchange.apart:
            self._open()
            self._until_goodbye(lambda: None)

    def serve(self, meanwhile: Callable[[], None]) -> None:
        """Serve until all places have said goodbye; update when as many examples have passed as a batch has."""
        self._open()
        self._summed = 0

        def update() -> None:
            meanwhile()
            if self._summed and self._examples >= self._newest.total:
                self._examples -= self._newest.total
                self._update()

        self._until_goodbye(update)
        if self._summed:
            self._update()

    def _update(self) -> None:
        iteration = self._newest.iteration
        self._exchange.finish(iteration, self._rate(iteration))
        self._summed = 0

    def _until_goodbye(self, meanwhile: Callable[[], None]) -> None:
        while self._serving:
            self._run_or_end(self._messages.wait(meanwhile))

    def _run_or_end(self, choice: Choice) -> None:
        if choice[0] is not Kind.GOODBYE:
            self._run(choice)
            return
        self._messages.wait_for_goodbyes()
        for place, headers in self._headers.items():
            self._mail.say_goodbye(headers, place)
        self._examples = self._target = 0
        self._serving, self.drained = False, True

    # ── one message ───────────────────────────────────────────────────────────────────────────────────────────
    def _run(self, choice: Choice) -> None:
        header, slot = self._messages.take(choice)
        if choice[0] is Kind.BACKWARD:
            dy, sums = self._mail.answer(slot.behind, header)
        else:
            y = self._passes.forward(header, slot)
            if not self._has_loss:
                self._mail.send_on(slot.behind, header, y, self._headers.get(header.place))
                self._messages.send_on(header, slot)
                return
            dy, sums = self._passes.loss_gradient(header, slot, y)
        self._passes.backward(header, slot, dy, sums, accumulate=self._summed > 0)
        self._newest = header
        self._summed += 1
        self._examples += header.count
