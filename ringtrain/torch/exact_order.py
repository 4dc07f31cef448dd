"""Exact order: the examples of each step are a pure function of seed and step, at any number of ranks, and gradients
are weighted by examples.

A loader hands over shares of batches. The optimizer's step makes the current one's examples done; DDP's forward takes
from it the factor of backward's gradients, before DDP's mean over the ranks. Libraries fetch batches ahead, so
a forward pass looks for the share whose tensors it gets.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.data.sampler import RandomSampler

from ringtrain.data.batches.sampler import Sampler, batch_part
from ringtrain.errors import UsageError

ACCELERATE, TRANSFORMERS = "accelerate.data_loader", "transformers.trainer"


@dataclass(eq=False, slots=True)
class Division:
    """The ranks among which batches are divided, and this one's number. living: those that are left of them."""

    rank: int
    size: int
    living: list[int]


@dataclass(eq=False, slots=True)
class BatchShare:
    """This rank's part of a batch. number: in its pass; stop: examples done after it; units: its examples; count: those
    of all; tensors: of its batch, as long as they live."""

    sampler: "ExactSampler"
    number: int
    stop: int
    units: int
    count: int
    division: Division
    tensors: list[ref[torch.Tensor]]

    def factor(self) -> float:
        """Return the weight of this rank, times the ranks."""
        return self.division.size * self.units / self.count

    def weight_after_deaths(self) -> float:
        """Return by how much the parts that are left count more in a mean over them: those of dead ranks are missing,
        and :meth:`factor` counts these."""
        living, size = self.division.living, self.division.size
        left = sum(stop - start for start, stop in (batch_part(self.count, rank, size) for rank in living))
        return self.count / left * len(living) / size if left else 1.0

    def take(self) -> None:
        """Be what the script trains with."""
        _state.latest = self.sampler.current = self


class ExactSampler(torch.utils.data.Sampler[list[int]]):
    """This rank's part of each global batch, for ``DataLoader(dataset, batch_sampler=...)``.

    dataset: map-style; one of :func:`ringtrain.torch.open_dataset` that is large is permuted in windows of blocks
    batch:   examples of all ranks, at least one for each
    seed:    of the order, as `ringtrain train` has it
    tail:    whether an epoch's last, smaller batch comes. A rank without an example of it gets one that weighs 0

    A pass is what is left of an epoch. Examples are done with the optimizer's step. Raises: UsageError, DataError
    """

    def __init__(self, dataset, batch: int, seed: int = 0, *, tail: bool = True):
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            kind = type(dataset).__name__
            raise UsageError(f"ExactSampler got a {kind}: wanted a map-style dataset; open_dataset reads shards as one")
        self.order = Sampler(len(dataset), batch, seed, windows=getattr(dataset, "windows", None))
        self.batch_size = batch  # accelerate asks for it
        self.tail, self.examples_done, self.is_used = tail, 0, False
        self.epoch = self.skipped = 0  # as the script has set it; batches of it that a library leaves out
        self.replaced: Callable[[], Any] = lambda: None  # the sampler in whose place this one is
        self.current: BatchShare | None = None
        self.shares: deque[BatchShare] = deque()  # from the current one on
        self.divisions: list[tuple[int, Division]] = []  # before deaths: up to so many examples
        self._next_start = 0, 0  # (examples, batches) after which the next pass goes on, if a death has cut the last
        _state.samplers[self] = _state.count = _state.count + 1
        _install()

    def __len__(self) -> int:
        return self.order.iterations_per_epoch if self.tail else self.order.count // self.order.batch

    def __iter__(self) -> "LoaderPass":
        return LoaderPass(self, *self._next_start)

    def go_on(self, loader: DataLoader, examples: int, batches: int) -> Iterator:
        """Return what a loader hands over after that."""
        self._next_start = examples, batches
        try:
            rows = loader._get_iterator()
        finally:
            self._next_start = 0, 0
        rows._sampler_iter.loader = loader
        return rows

    def division_of(self, stop: int) -> Division:
        """Return the division of the batch that ends there."""
        return next((division for limit, division in self.divisions if stop <= limit), _state.division)

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next pass, unless the order is beyond: it never goes back."""
        self.epoch = epoch

    def begin(self) -> int:
        """Return the iteration with which a pass begins."""
        if not self.is_used and _state.pending:
            self.load_state_dict(_state.pending.pop(0))
        self.is_used, self.current = True, None
        self.shares.clear()
        epoch = max(self.epoch, getattr(self.replaced(), "epoch", 0))
        asked = epoch * self.order.count + self.skipped * self.order.batch
        self.examples_done = max(self.examples_done, asked)
        return self.order.iteration_at(self.examples_done)

    def step(self) -> None:
        """Count the examples of the current batch as done."""
        if self.current is not None:
            self.examples_done = max(self.examples_done, self.current.stop)
            while self.shares[0] is not self.current:
                self.shares.popleft()

    def state_dict(self) -> dict[str, int]:
        """Return the seed and the examples done, of all ranks."""
        return {"seed": self.order.seed, "examples_done": self.examples_done}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from a state, of any number of ranks, with the next pass. Raises DataError for another batch size."""
        replace(self.order, seed=state["seed"]).iteration_at(state["examples_done"])
        self.order, self.examples_done = replace(self.order, seed=state["seed"]), state["examples_done"]


class LoaderPass(Iterator[list[int]]):
    """Yields this rank's index lists, one a batch, to the end of the epoch. The first list begins the pass."""

    def __init__(self, sampler: ExactSampler, examples: int = 0, batches: int = 0):
        self._sampler, self.stop = sampler, 0  # examples done after it
        self._handed, self._batches = examples, batches  # that are handed over
        self.loader: DataLoader | None = None
        self.rest: Iterator | None = None  # of this pass, after a death
        self._lists: Iterator[list[int]] | None = None
        self._ahead: deque[BatchShare] = deque()  # not handed over yet

    def _parts(self) -> Iterator[list[int]]:
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        check_batch(self._sampler.order.batch, size)
        if (rank, size) != (_state.division.rank, _state.division.size):
            _state.division = Division(rank, size, list(range(size)))
        first = self._sampler.order.iteration_at(self._handed) if self._handed else self._sampler.begin()
        self._order = order = self._sampler.order
        epoch, skipped = order.epoch_of(first), self._batches
        before, self.stop = epoch * order.count, (epoch + 1) * order.count
        windows = order.epoch_windows(epoch) if order.windows else None
        whole: Any = None if windows else order.order(epoch)
        for number in range(epoch * order.iterations_per_epoch + len(self._sampler) - first):
            _, start, stop = order.place(first + number)
            examples = windows.examples(start, stop) if windows else whole[start:stop]
            division = self._sampler.division_of(before + stop)
            begin, end = batch_part(stop - start, division.rank, division.size)
            counts = end - begin, stop - start
            self._ahead.append(BatchShare(self._sampler, number + skipped, before + stop, *counts, division, []))
            yield examples[begin : max(end, begin + 1)].tolist()

    def __next__(self) -> list[int]:
        self._lists = self._lists or self._parts()
        return next(self._lists)

    def deliver(self, data) -> None:
        """Note that the loader hands over the next batch of this pass."""
        share, sampler = self._ahead.popleft(), self._sampler
        if share.stop <= sampler.examples_done or self._order != sampler.order:
            raise UsageError(
                "load_state_dict() of an exact order came when its DataLoader had begun a pass: load the state before "
                "iter() of the loader, or before the trainer starts"
            )
        share.tensors += map(ref, _tensors(data))
        sampler.shares.append(share)
        self._handed, self._batches = share.stop, share.number + 1
        share.take()

    def go_on_after_deaths(self) -> Iterator | None:
        """Return what hands over the rest of this pass, if that was fetched as divided among ranks of which one has
        died since."""
        following = next(iter(self._ahead), None)
        if following is not None and following.division is not self._sampler.division_of(following.stop):
            assert self.loader is not None, "it hands over what this pass yields"
            self._ahead.clear()
            self.rest = self._sampler.go_on(self.loader, self._handed, self._batches)
        return self.rest

    def end(self) -> None:
        """Count the epoch as done, with a tail that is left out."""
        self._sampler.examples_done = max(self._sampler.examples_done, self.stop)


class _State:
    """pending: states of samplers whose first pass is to come; is_weighed: whether all ranks' losses have one divisor
    already."""

    def __init__(self) -> None:
        self.asked: tuple[int, int] | None = None  # (batch, seed) of loaders that shuffle
        self.division = Division(0, 1, [0])  # of batches that are to come
        self.latest: BatchShare | None = None
        self.samplers: WeakKeyDictionary[ExactSampler, int] = WeakKeyDictionary()  # in the order of their making
        self.count = 0  # of all samplers so far
        self.replacing: WeakKeyDictionary[Any, ExactSampler] = WeakKeyDictionary()  # by what shuffled
        self.factors: WeakKeyDictionary[torch.nn.Module, GradientFactor] = WeakKeyDictionary()  # of modules in DDP
        self.pending: list[Mapping[str, int]] = []
        self.noted: set[str] = set()
        self.adapted: set[str] = set()  # names of modules of libraries
        self.is_weighed = False


_state = _State()


def replace_shuffling(batch: int, seed: int) -> None:
    """Let loaders that shuffle have exact order from now on."""
    _state.asked = batch, seed
    _install()


def check_batch(batch: int, size: int) -> None:
    """Raise UsageError if a rank had no example of a full batch."""
    if batch < size:
        raise UsageError(f"a global batch of {batch} for {size} ranks: each needs an example; give {size} or more")


def states() -> list[dict[str, int]]:
    """Return the states of all samplers that loaders use."""
    return [sampler.state_dict() for sampler in _state.samplers if sampler.is_used]


def restore(saved: Sequence[Mapping[str, int]]) -> None:
    """Go on from :func:`states`; a loader without a pass so far takes its state at its first one."""
    used = [sampler for sampler in _state.samplers if sampler.is_used]
    for sampler, each in zip(used, saved, strict=False):
        sampler.load_state_dict(each)
    _state.pending = list(saved[len(used) :])


def handed_over() -> list[tuple[int, int]]:
    """Return (number of a sampler, examples of all ranks that its loaders have handed over)."""
    return [
        (number, sampler.shares[-1].stop if sampler.shares else sampler.examples_done)
        for sampler, number in _state.samplers.items()
    ]


def go_on_among(rank: int, survivors: Sequence[int], handed: Iterable[tuple[int, int]]) -> None:
    """Divide examples among the survivors of a death, from the first batch on that none has been handed over.

    rank: this one's number now; survivors: their numbers before; handed: :func:`handed_over` of all of them
    """
    if not any(sampler.is_used for sampler in _state.samplers):
        return
    before, handed = _state.division, list(handed)
    for division in {before, *(each for sampler in _state.samplers for _, each in sampler.divisions)}:
        division.living = [division.living[number] for number in survivors]
    for sampler, number in _state.samplers.items():
        limit = max(examples for other, examples in handed if other == number)
        sampler.divisions.append((limit, before))
    _state.division = Division(rank, len(survivors), list(range(len(survivors))))


def weight_after_deaths() -> float:
    """Return :meth:`BatchShare.weight_after_deaths` of the current batch; 1 without exact order."""
    return 1.0 if _state.latest is None else _state.latest.weight_after_deaths()


def had_no_effect() -> bool:
    """Whether exact order is asked for, and no loader shuffles."""
    return _state.asked is not None and not states()


# ── loaders ───────────────────────────────────────────────────────────────────────────────────────────────────
@cache
def _install() -> None:
    """Follow what loaders hand over, the steps of optimizers, and DDP's forward passes."""
    make_loader, index_sampler = DataLoader.__init__, DataLoader._index_sampler.fget  # type: ignore[attr-defined]
    next_batch, before_forward = _BaseDataLoaderIter.__next__, DistributedDataParallel._pre_forward
    rows_of = DataLoader.__iter__

    @wraps(make_loader)
    def make(loader, *arguments, **named) -> None:
        for name, adapt in ((ACCELERATE, _adapt_accelerate), (TRANSFORMERS, _adapt_transformers)):
            if name in sys.modules and name not in _state.adapted:
                _state.adapted.add(name)
                adapt(sys.modules[name])
        make_loader(loader, *arguments, **named)

    def sampler_of(loader):
        exact = _exact_of(loader)
        return index_sampler(loader) if exact is None else exact

    def begin_pass(loader: DataLoader) -> _BaseDataLoaderIter:
        rows = rows_of(loader)
        if isinstance(rows._sampler_iter, LoaderPass):
            rows._sampler_iter.loader = loader
        return rows

    def hand_over(rows: _BaseDataLoaderIter):
        rest = rows._sampler_iter.go_on_after_deaths() if isinstance(rows._sampler_iter, LoaderPass) else None
        if rest is not None:
            return next(rest)
        try:
            data = next_batch(rows)
        except StopIteration:
            if isinstance(rows._sampler_iter, LoaderPass):
                rows._sampler_iter.end()
            raise
        if isinstance(rows._sampler_iter, LoaderPass):
            rows._sampler_iter.deliver(data)
        return data

    def weigh(ddp: DistributedDataParallel, *inputs, **named):
        _weigh(ddp, inputs, named)
        return before_forward(ddp, *inputs, **named)

    def after_step(*_) -> None:
        for sampler in _state.samplers:
            sampler.step()

    DataLoader.__init__ = make
    DataLoader._index_sampler, DataLoader.__iter__ = property(sampler_of), begin_pass
    _BaseDataLoaderIter.__next__, DistributedDataParallel._pre_forward = hand_over, weigh
    register_optimizer_step_post_hook(after_step)


def _exact_of(loader: DataLoader) -> ExactSampler | None:
    """Return the sampler of a loader in exact order, behind those that libraries wrap around it; None if it has none:
    it does not shuffle, or has an order of its own."""
    source, skipped, tail = loader.sampler if loader.batch_sampler is None else loader.batch_sampler, 0, True
    while type(source) is BatchSampler or (type(source).__module__ == ACCELERATE and hasattr(source, "batch_sampler")):
        skipped += getattr(source, "skip_batches", 0)
        tail &= not getattr(source, "drop_last", False)
        source = getattr(source, "batch_sampler", None) or source.sampler
    if isinstance(source, ExactSampler):
        exact = source
    elif _state.asked is None or type(source) is SequentialSampler or getattr(source, "shuffle", None) is False:
        return None
    elif loader.batch_sampler is None or not _shuffles(source, loader.dataset):
        kind = "An IterableDataset" if isinstance(loader.dataset, IterableDataset) else f"A {type(source).__name__}"
        _note(f"{kind} has an order of its own: --exact-order leaves its DataLoader alone")
        return None
    else:
        if source not in _state.replacing:
            _state.replacing[source] = ExactSampler(loader.dataset, *_state.asked, tail=tail)
            _state.replacing[source].replaced = ref(source)
        exact = _state.replacing[source]
        loader.state_dict, loader.load_state_dict = exact.state_dict, exact.load_state_dict  # for Lightning
    if not getattr(loader, "in_order", True):
        raise UsageError("exact order and DataLoader(in_order=False), which has no fixed order: leave in_order out")
    exact.skipped = skipped
    return exact


def _shuffles(source, dataset) -> bool:
    """Whether a sampler of PyTorch's, or accelerate's, shuffles, and gives all of a dataset once to all ranks."""
    if any(source is each for each in _state.replacing):  # its number of ranks may be another one since a death
        return True
    if type(source) is DistributedSampler:
        size = dist.get_world_size() if dist.is_initialized() else source.num_replicas
        return source.num_replicas == size and len(source.dataset) == len(dataset)
    is_whole = isinstance(source, RandomSampler) and not source.replacement and len(source) == len(dataset)
    return is_whole and (type(source) is RandomSampler or type(source).__module__ == ACCELERATE)


def _note(text: str) -> None:
    if text not in _state.noted and (not dist.is_initialized() or dist.get_rank() == 0):
        sys.stderr.write(f"ringtrain: note: {text}\n")
    _state.noted.add(text)


def _adapt_accelerate(module) -> None:
    """Its loaders fetch a batch ahead of the one that they give, and perhaps move it."""
    rows_of = module.DataLoaderShard.__iter__

    def rows(loader):
        exact = _exact_of(loader.base_dataloader)
        if exact is not None:
            exact.set_epoch(loader.iteration)
        for number, batch in enumerate(rows_of(loader)):
            if exact is not None:
                share = next(each for each in exact.shares if each.number == number)
                share.tensors += map(ref, _tensors(batch))
                share.take()
            yield batch

    def dispatch(loader):
        if _exact_of(loader.base_dataloader) is not None:
            raise UsageError(
                "accelerate's dispatch_batches reads all on rank 0, and in exact order each rank reads its "
                "own part: leave dispatch_batches out"
            )
        yield from batches_of(loader)

    batches_of = module.DataLoaderDispatcher.__iter__
    module.DataLoaderShard.__iter__, module.DataLoaderDispatcher.__iter__ = rows, dispatch


def _adapt_transformers(module) -> None:
    """The Trainer fetches all batches of an accumulation, copies each, and divides some losses by the tokens of all
    ranks."""
    training_step, compute_loss = module.Trainer.training_step, module.Trainer.compute_loss

    @wraps(training_step)
    def step(trainer, model, inputs, *arguments, **named):
        _take(inputs)
        return training_step(trainer, model, inputs, *arguments, **named)

    @wraps(compute_loss)
    def loss(trainer, *arguments, **named):
        is_weighed = trainer.args.average_tokens_across_devices and named.get("num_items_in_batch") is not None
        _state.is_weighed = is_weighed and bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func)
        try:
            return compute_loss(trainer, *arguments, **named)
        finally:
            _state.is_weighed = False

    module.Trainer.training_step, module.Trainer.compute_loss = step, loss


# ── weights ───────────────────────────────────────────────────────────────────────────────────────────────────
class GradientFactor:
    """Multiplies the gradients of a module in each backward. ``waits``: whether a loss has not gone backward yet"""

    def __init__(self) -> None:
        self.factor, self.waits = 1.0, False
        self._watched: dict[int, ref[torch.Tensor]] = {}

    def begin(self, module: torch.nn.Module, factor: float) -> None:
        """Use this factor from now on, for all parameters: those that were frozen may be thawed."""
        if self.waits and module.training and factor != self.factor:
            raise UsageError(
                "two batches of different sizes went forward before a backward, and in exact order each has its own "
                "weight: call backward() for each, or give DataLoader(drop_last=True)"
            )
        self.factor, self.waits = factor, module.training  # a script may evaluate with gradients, too
        for parameter in module.parameters():
            watched = self._watched.get(id(parameter))
            if parameter.requires_grad and (watched is None or watched() is not parameter):
                parameter.register_hook(self._scaled)
                self._watched[id(parameter)] = ref(parameter)

    def _scaled(self, gradient: torch.Tensor) -> torch.Tensor:
        self.waits = False
        if self.factor == 1:
            return gradient
        return gradient * self.factor if self.factor else torch.zeros_like(gradient)


@_disable_dynamo
def _weigh(ddp: DistributedDataParallel, inputs: tuple, named: dict) -> None:
    """Find the batch of a forward pass, and its factor."""
    if not torch.is_grad_enabled():
        return
    _take((inputs, named))
    if _state.latest is not None:
        factor = _factor(ddp, _state.latest)
        _state.factors.setdefault(ddp.module, GradientFactor()).begin(ddp.module, factor)


def _factor(ddp: DistributedDataParallel, share: BatchShare) -> float:
    engine, order = getattr(ddp.reducer, "engine", None), share.sampler.order
    size = len(share.division.living)
    if dist.get_world_size(ddp.process_group) != size:
        raise UsageError(
            f"DDP's group has {dist.get_world_size(ddp.process_group)} ranks, and exact order divides batches among "
            f"{size}: make the groups of ranks before the first batch, and wrap the module over all ranks"
        )
    if _state.is_weighed:
        if share.sampler.tail and 0 < order.count % order.batch < size:
            raise UsageError(
                f"an epoch's last batch has {order.count % order.batch} examples for {size} ranks, and the "
                "Trainer divides by the tokens of all, those that stand in too: give --dataloader_drop_last or another "
                "global batch"
            )
        return 1.0
    if engine is not None and engine.differs:
        engine.note("ranks that update alone count alike in exact order, whatever the sizes of their parts of a batch")
        return 1.0
    return share.factor()


def _take(data) -> None:
    """Take the share with most tensors of these, or of those that they are views of, if there is one."""
    inputs = list(_tensors(data))
    ids = {id(each) for each in [*inputs, *(each._base for each in inputs)] if each is not None}
    shares = [share for sampler in _state.samplers for share in sampler.shares]
    counts = [sum(id(each()) in ids for each in share.tensors) for share in shares]
    if any(counts):
        shares[counts.index(max(counts))].take()


def _tensors(data) -> Iterator[torch.Tensor]:
    for leaf in tree_leaves(data):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif isinstance(leaf, Mapping):  # of a class that PyTorch does not know
            yield from _tensors(dict(leaf))
