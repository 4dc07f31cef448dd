"""What strategies of ``python -m ringtrain.torch`` compute, in plain PyTorch: one process has the networks of all
ranks, in float64, and adds in the order of ranks. Each reference returns the weights of every rank."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial, reduce

import torch
from torch.nn.functional import cross_entropy

from ringtrain.ops.reference.exchange import drawn

Tensors = list[torch.Tensor]
STEPS, PASSES = 50, 2


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.table = torch.nn.Conv2d(1, 4, 3), torch.nn.Embedding(12, 16)
        self.hidden, self.head = torch.nn.Linear(64, 16), torch.nn.Linear(16, 5)

    def forward(self, images, tokens):
        seen = self.hidden(torch.tanh(self.conv(images)).flatten(1))
        return self.head(torch.tanh(seen + self.table(tokens) + self.table(tokens + 6)))


def make_net() -> torch.nn.Module:
    torch.manual_seed(1)
    return Net().double()


def sgd(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)


def adamw(net: torch.nn.Module) -> torch.optim.Optimizer:
    matrices, vectors = ([p for p in net.parameters() if (p.dim() > 1) is wanted] for wanted in (True, False))
    groups = [{"params": vectors, "weight_decay": 0.0, "lr": 0.002}, {"params": matrices}]
    return torch.optim.AdamW(groups, 0.004, weight_decay=0.1)


RECIPES = {"sgd": sgd, "adamw": adamw}


def batch(rank: int, step: int, number: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    drawing = torch.Generator().manual_seed(1000 * step + 10 * rank + number)
    images = torch.randn(6, 1, 6, 6, generator=drawing, dtype=torch.float64)
    return images, *(torch.randint(0, high, (6,), generator=drawing) for high in (6, 5))


def run_passes(net: torch.nn.Module, rank: int, step: int) -> None:
    """Accumulate the gradients of a step, as a user of DDP does."""
    for number in range(PASSES):
        last = number == PASSES - 1 or not hasattr(net, "no_sync")
        images, tokens, labels = batch(rank, step, number)
        with nullcontext() if last else net.no_sync():
            (cross_entropy(net(images, tokens), labels) / PASSES).backward()


class Rank:
    """The network of one rank, and its optimizer."""

    def __init__(self, recipe: str, rank: int):
        self.rank, self.net = rank, make_net()
        self.weights = list(self.net.parameters())
        self.optimizer = RECIPES[recipe](self.net)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 60)

    def gradients(self, step: int) -> Tensors:
        self.optimizer.zero_grad()
        run_passes(self.net, self.rank, step)
        return [weight.grad for weight in self.weights]

    def update(self, gradients: Tensors | None) -> None:
        for index, weight in enumerate(self.weights):
            weight.grad = None if gradients is None else gradients[index].clone()
        self.optimizer.step()
        self.schedule.step()

    def put(self, weights: Tensors) -> None:
        with torch.no_grad():
            for weight, value in zip(self.weights, weights, strict=True):
                weight.copy_(value)

    def copy(self) -> Tensors:
        return [weight.detach().clone() for weight in self.weights]

    def state(self) -> Tensors:
        """The optimizer's tensors of the weights' shapes."""
        return [
            value
            for weight in self.weights
            for name, value in self.optimizer.state[weight].items()
            if name != "step" and value is not None
        ]


def each(function: Callable, *lists: Tensors) -> Tensors:
    with torch.no_grad():
        return [function(*tensors) for tensors in zip(*lists, strict=True)]


def total(of_ranks: Sequence[Tensors]) -> Tensors:
    return reduce(partial(each, torch.add), of_ranks)


def mean_of_sum(gradients: Sequence[Tensors]) -> Tensors:
    return each(lambda tensor: tensor * (1 / len(gradients)), total(gradients))


def shares_of(gradients: Sequence[Tensors]) -> list[Tensors]:
    return [each(lambda tensor: tensor * (1 / len(gradients)), tensors) for tensors in gradients]


def sum_of_shares(gradients: Sequence[Tensors]) -> Tensors:
    return total(shares_of(gradients))


# ── all ranks make the same update ────────────────────────────────────────────────────────────────────────────
def together(make_combine: Callable, recipe: str, ranks: int, steps: int = STEPS) -> list[Tensors]:
    """``make_combine()(gradients of all ranks)`` → the gradient of the update; None: there is no update."""
    every, combine = [Rank(recipe, rank) for rank in range(ranks)], make_combine()
    for step in range(steps):
        combined = combine([rank.gradients(step) for rank in every])
        for rank in every:
            rank.update(combined)
    return [rank.copy() for rank in every]


allreduce = partial(together, lambda: sum_of_shares)
server = partial(together, lambda: mean_of_sum)


class DelayedGradient:
    """The mean of the step before."""

    def __init__(self):
        self._pending: Tensors | None = None

    def __call__(self, gradients: Sequence[Tensors]) -> Tensors | None:
        before, self._pending = self._pending, mean_of_sum(gradients)
        return before


delayed = partial(together, DelayedGradient)


class PowerSGD:
    """The sum of all ranks' matrices in a basis of ``r`` columns; a rank keeps its part outside. The first basis is the
    documented one, of drawn numbers."""

    def __init__(self, r: int):
        self._r, self._kept, self._q = r, {}, {}

    def __call__(self, gradients: Sequence[Tensors]) -> Tensors:
        return [self._combined(index, tensors) for index, tensors in enumerate(zip(*shares_of(gradients), strict=True))]

    def _combined(self, index: int, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        shape, columns = gradients[0].shape, gradients[0].shape[-1]
        rows = gradients[0].numel() // columns
        if self._r * (rows + columns) >= rows * columns:
            return reduce(torch.add, gradients)
        parts = [gradient.reshape(rows, columns) for gradient in gradients]
        parts = each(torch.add, parts, self._kept.get(index, each(torch.zeros_like, parts)))
        first = torch.stack([torch.from_numpy(drawn(r, columns)) for r in range(self._r)], 1)
        q = torch.linalg.qr(self._q.get(index, first)).Q
        p = torch.linalg.qr(reduce(torch.add, [part @ q for part in parts])).Q
        of_ranks = [part.T @ p for part in parts]
        self._kept[index] = [part - p @ q.T for part, q in zip(parts, of_ranks, strict=True)]
        self._q[index] = reduce(torch.add, of_ranks)
        return (p @ self._q[index].T).reshape(shape)


# ── ranks update alone ────────────────────────────────────────────────────────────────────────────────────────
def averaging(
    recipe: str,
    ranks: int,
    steps: int = STEPS,
    *,
    every: int = 8,
    keep: bool = False,
    begin: int = 0,
    outer: tuple[float, float] | None = None,
) -> list[Tensors]:
    """Local SGD. keep: each rank keeps its optimizer's state. begin: steps with the mean gradient before. outer: the
    momentum and the rate of DiLoCo's Nesterov step from one average to the next."""
    momentum, lr = outer or (0.0, 1.0)
    all_ranks = [Rank(recipe, rank) for rank in range(ranks)]
    anchor = all_ranks[0].copy()
    velocity = each(torch.zeros_like, anchor)
    for step in range(steps):
        gradients = [rank.gradients(step) for rank in all_ranks]
        if step < begin:
            gradients = [mean_of_sum(gradients)] * ranks
        if step == begin:
            anchor = all_ranks[0].copy()
        for rank, gradient in zip(all_ranks, gradients, strict=True):
            rank.update(gradient)
        if step < begin or (step + 1 - begin) % every:
            continue
        mean = sum_of_shares([rank.copy() for rank in all_ranks])
        if outer:
            towards = each(torch.sub, anchor, mean)
            velocity = each(lambda v, d: momentum * v + d, velocity, towards)
            mean = anchor = each(lambda w, d, v: w - lr * (d + momentum * v), anchor, towards, velocity)
        states = sum_of_shares([rank.state() for rank in all_ranks])
        for rank in all_ranks:
            rank.put(mean)
            for value, average in zip(rank.state(), states, strict=True) if not keep else ():
                value.copy_(average)
    return [rank.copy() for rank in all_ranks]


# ── state by rank ─────────────────────────────────────────────────────────────────────────────────────────────
class GPT(torch.nn.Module):
    """A GPT of bytes."""

    def __init__(self, width: int = 64, layers: int = 2, context: int = 64):
        super().__init__()
        self.bytes, self.places = torch.nn.Embedding(256, width), torch.nn.Embedding(context, width)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = torch.nn.Linear(width, 256)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, text):
        return self.out(self.blocks(self.bytes(text) + self.places.weight, self.mask, is_causal=True))
