"""The iterations of a rank with fully connected layers: it serves messages, runs activations forward, to the next group
of ranks or to the loss, and gradients backward, to the group before.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ringtrain.exchange.model_parallel.activation_messages import GOODBYE, Header
from ringtrain.exchange.model_parallel.pipeline import IN_FLIGHT, MessageServing
from ringtrain.exchange.model_parallel.pipeline_behind import PipelineBehind
from ringtrain.nn.losses import LabelForm, Loss
from ringtrain.ops.base import Ops
from ringtrain.train.pipeline.fc_messages import (
    BatchCut,
    Choice,
    FcMessages,
    Kind,
    PlaceMessages,
    messages_of,
)
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
        depth, mail = min(IN_FLIGHT, cut.parts), exchange.mail
        trainers, behind = exchange.facts.roles.trainers, exchange.table.behind
        self.passes = FcPasses(exchange, ops, loss, labels, seed, depth * cut.places)
        places = []
        for place in range(cut.places):
            before = exchange.table.before(trainers[place])
            numbers = range(place * depth, (place + 1) * depth)
            slots = [self.passes.make_slot(place, n, before, behind, cut.capacity) for n in numbers]
            places.append(PlaceMessages(mail.header_from(before[0], place), slots, mail))
        self._messages = FcMessages(places, not exchange.apart, exchange.group, mail)
        announces = behind and self._messages.leads
        self._ahead = [mail.header_to(behind, place) for place in range(cut.places if announces else 0)]
        self._summed = 0  # messages since the last update
        self._examples = self._target = (
            0  # since the last meeting: examples that have passed, and examples of begun iterations
        )
        self._serving = False  # whether messages may come, until goodbyes
        self._drained = False  # whether all places have said goodbye, and no meeting has followed

    # ── an iteration ──────────────────────────────────────────────────────────────────────────────────────────
    def begin(self, iteration: StageIteration) -> None:
        self._batch = iteration.batch

    def instructions(self, micro_batches: int) -> tuple:
        """An iteration without micro-batches of this rank's own."""
        return (Serve(), ReduceLoss(), CheckLoss(), Update())

    def run(self, instruction: object) -> None:
        if isinstance(instruction, Serve):
            self._summed = 0
            serve = self._serve_as_they_come if self._exchange.apart else self._serve_in_order
            serve(self._batch.total)

    def _serve_in_order(self, total: int) -> None:
        messages = messages_of(total, self._cut)
        self._messages.expect(messages, self._batch.iteration)
        while self._summed < len(messages):
            self._run(self._messages.wait())

    def _serve_as_they_come(self, total: int) -> None:
        """Serve until as many examples have passed as the begun iterations have, whichever they are of."""
        self._open()
        self._target += total
        while self._examples < self._target:
            self._run(self._messages.wait())
        if not self._summed:
            self._exchange.leave_out_update()

    def rehearse(self) -> None:
        self.passes.rehearse()

    # ── service, where ranks in front wait for no other ───────────────────────────────────────────────────────
    def _open(self) -> None:
        """Expect messages until the goodbyes of this meeting."""
        if not self._serving:
            self._messages.open()
        self._serving, self._drained = True, False

    def poll(self) -> None:
        choice = self._messages.test() if self._serving else None
        if choice is not None:
            self._run_or_end(choice)

    def drain_peers(self) -> None:
        if self._exchange.apart and not self._drained:
            self._open()
            self._until_goodbye(lambda: None)

    def meet(self) -> None:
        self.drain_peers()
        self._drained = False

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
        for place, ahead in enumerate(self._ahead):
            ahead.send(Header(0, place, 0, GOODBYE))
            ahead.wait()
        self._examples = self._target = 0
        self._serving, self._drained = False, True

    # ── one message ───────────────────────────────────────────────────────────────────────────────────────────
    def _run(self, choice: Choice) -> None:
        header, slot = self._messages.take(choice)
        if choice[0] is Kind.BACKWARD:
            dy, sums = self.passes.gradient_from_behind(header, slot)
        else:
            y = self.passes.forward(header, slot)
            if slot.onward is not None:
                self.passes.send_on(header, slot, y, self._announce)
                self._messages.send_on(header, slot)
                return
            dy, sums = self.passes.loss_gradient(header, slot, y)
        self.passes.backward(header, slot, dy, sums, accumulate=self._summed > 0)
        self._newest = header
        self._summed += 1
        self._examples += header.count

    def _announce(self, header: Header) -> None:
        if self._ahead:
            self._ahead[header.place].send(header)
