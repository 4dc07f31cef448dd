"""What must be the same on all ranks is compared, and what must be finite is looked at: at the start and the end of a
run, before each checkpoint, and as often as ``--check-replicas`` says.

Each rank hashes its weights, span by span, and what it keeps of the optimizer's state where all keep the same. One
short hash of these travels. Where it differs, so do the hashes of spans, then those of ever smaller blocks of the first
span that differs, until the first and the last element are known: what most ranks have is taken to be right.
"""

import hashlib
import socket
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ringtrain.errors import DivergedError, ReplicaError, everywhere
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.update.owned_update import OwnedArray
from ringtrain.nn.arena import Arena
from ringtrain.nn.base import Span
from ringtrain.ops.base import Ops
from ringtrain.train import texts
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import peers, placed

WEIGHTS = "weights"
DIGEST_BYTES = 8
FAN = 256  # blocks that a stretch is cut into to find where it differs


class ReplicaCheck:
    """Of one run. ``check`` is collective, after :meth:`Exchange.synchronize`; it raises the same error on every
    rank."""

    def __init__(self, ops: Ops, arena: Arena, exchange: Exchange, transport: Transport):
        self._ops, self._arena, self._exchange, self._transport = ops, arena, exchange, transport

    def gradient_problem(self) -> str | None:
        """The first span whose gradient is not finite, on this rank. Before :meth:`Exchange.synchronize`, which may use
        that memory."""
        return _first_nonfinite(self._ops, self._arena.spans, OwnedArray("", self._arena.grads, self._all(), False))

    def check(self, when: str, gradient: str | None = None, comparing: bool = True) -> None:
        """``when``: "after iteration 12". ``gradient``: what :meth:`gradient_problem` found. Raises DivergedError where
        weights or the optimizer's state are not finite; and, ``comparing``, ReplicaError where ranks differ."""
        kept = [OwnedArray(WEIGHTS, self._arena.weights, self._all(), True), *self._exchange.owned_state.arrays()]
        alike = [each for each in kept if each.alike] if comparing and self._transport.size > 1 else []
        digests = [digest for each in alike for digest in self._digests(each)]
        problem = self._problem(kept)
        own = [hashlib.sha256("".join(digests).encode()).hexdigest(), problem, gradient, socket.gethostname()]
        wholes, problems, gradients, hosts = zip(*self._transport.gather_json(own), strict=True)
        if any(problems):
            raise everywhere(DivergedError(_say_spoilt(when, problems, gradients, hosts)))
        if len(set(wholes)) > 1:
            raise everywhere(ReplicaError(self._say_differing(when, alike, digests, wholes, hosts)))

    def _all(self) -> list:
        return [(0, self._arena.count)]

    def _digests(self, kept: OwnedArray) -> list[str]:
        """One of each span."""
        host = self._ops.to_host(kept.array)
        return [_digest(host[span.start : span.start + span.count]) for span in self._arena.spans]

    def _problem(self, kept: Sequence[OwnedArray]) -> list[str] | None:
        """[what, span] of the first that is not finite."""
        found = ([each.name, _first_nonfinite(self._ops, self._arena.spans, each)] for each in kept)
        return next((each for each in found if each[1] is not None), None)

    # ── where they differ ─────────────────────────────────────────────────────────────────────────────────────
    def _say_differing(self, when: str, alike: Sequence[OwnedArray], digests: list[str], wholes, hosts) -> str:
        place = _first_differing(self._transport.gather_json(digests))
        kept, span = alike[place // len(self._arena.spans)], self._arena.spans[place % len(self._arena.spans)]
        own = self._ops.to_host(kept.array[span.start : span.start + span.count])
        first = _narrow(self._transport, own)
        last = own.size - 1 - _narrow(self._transport, own[::-1])
        values = self._transport.gather_json(repr(own[first].item()))
        what = kept.name if kept.name == WEIGHTS else texts.OF_THE_OPTIMIZER(name=kept.name)
        index = [int(at) for at in np.unravel_index(first, span.shape)]
        return texts.DIFFERING(
            when=when,
            who=_say_who(wholes, hosts),
            what=what,
            span=span.name,
            first=first,
            last=last,
            count=own.size,
            index=index,
            values=_say_values(values),
        )


def _digest(content: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(content), digest_size=DIGEST_BYTES).hexdigest()


def _first_nonfinite(ops: Ops, spans: Sequence[Span], kept: OwnedArray) -> str | None:
    """The name of the first span of which an element is not finite."""
    if not kept.array.size or not ops.nonfinite(kept.array):
        return None
    at = 0
    for start, stop in kept.pieces:
        for span in spans:
            a, b = max(start, span.start), min(stop, span.stop)
            if a < b and ops.nonfinite(kept.array[at + a - start : at + b - start]):
                return span.name
        at += stop - start
    return None


def _first_differing(everyone: Sequence[Sequence[str]]) -> int:
    """The first place at which lists of digests are not all the same."""
    return next(place for place, row in enumerate(zip(*everyone, strict=True)) if len(set(row)) > 1)


def _narrow(transport: Transport, own: np.ndarray) -> int:
    """The first element that is not the same on all ranks; collective."""
    start, stop = 0, own.size
    while stop - start > 1:
        edges = np.linspace(start, stop, min(FAN, stop - start) + 1).astype(int).tolist()
        digests = [_digest(own[a:b]) for a, b in pairwise(edges)]
        place = _first_differing(transport.gather_json(digests))
        start, stop = edges[place], edges[place + 1]
    return start


# ── words ─────────────────────────────────────────────────────────────────────────────────────────────────────
def _groups(values: Sequence) -> dict:
    """Ranks by value; the most first, and the lowest where as many have something else."""
    groups: dict = {}
    for rank, value in enumerate(values):
        groups.setdefault(value, []).append(rank)
    return dict(sorted(groups.items(), key=lambda each: (-len(each[1]), each[1][0])))


def _say_who(wholes: Sequence[str], hosts: Sequence[str]) -> str:
    most, *others = _groups(wholes).values()
    wrong = sorted(rank for group in others for rank in group)
    have = texts.ONE_HAS if len(wrong) == 1 else texts.SEVERAL_HAVE
    differing = have(wrong=placed(wrong, hosts), most=placed(most, hosts))
    if len(most) == len(others[0]):
        return texts.UNDECIDED(differing=differing)
    return (texts.ONE_AGREES if len(most) == 1 else texts.SEVERAL_AGREE)(differing=differing)


def _say_values(values: Sequence[str]) -> str:
    return "; ".join(texts.VALUE_ON(value=value, ranks=peers(ranks)) for value, ranks in _groups(values).items())


def _say_spoilt(when: str, problems: Sequence, gradients: Sequence, hosts: Sequence[str]) -> str:
    spoilt = [rank for rank, problem in enumerate(problems) if problem]
    what, span = problems[spoilt[0]]
    named = texts.WEIGHTS_ARE() if what == WEIGHTS else texts.STATE_IS(name=what)
    gradient = next((found for found in gradients if found), None)
    cause = texts.GRADIENT_TOO(span=gradient) if gradient else ""
    return texts.NOT_FINITE(what=named, span=span, when=when, ranks=placed(spoilt, hosts), cause=cause)
