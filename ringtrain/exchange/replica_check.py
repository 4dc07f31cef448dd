"""Checks that weights and state are finite, and the same on all ranks: at the start and the end of a run, before each
checkpoint, and by ``--check-replicas``.

Each rank hashes its weights, span by span, and the part of the optimizer's state that all ranks keep. One short hash of
these travels. If it differs, the hashes of spans travel, then hashes of ever smaller blocks of the first span that
differs, down to its first and last differing element. The value of most ranks counts as right.
"""

import hashlib
import socket
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ringtrain.errors import DivergedError, ReplicaError, everywhere
from ringtrain.exchange.base import Exchange
from ringtrain.exchange.update.owned_update import OwnedArray
from ringtrain.memory.arena import Arena
from ringtrain.memory.spans import Span
from ringtrain.ops.base import Ops
from ringtrain.transport.agree import holders, ranks_by_value
from ringtrain.transport.base import Transport
from ringtrain.transport.waiting import placed

WEIGHTS = "weights"
DIGEST_BYTES = 8
FAN = 256  # blocks of one step of the search for a difference


class ReplicaCheck:
    """The check of one run. A rank with a part of the network is compared with no other."""

    def __init__(self, ops: Ops, arena: Arena, exchange: Exchange, transport: Transport):
        self._ops, self._arena, self._exchange, self._transport = ops, arena, exchange, transport
        whole = exchange.facts.roles.whole(transport.size)
        self._compares = transport.rank in whole and len(whole) > 1
        self._alike = transport if len(whole) == transport.size else transport.lasting_group(whole)

    def gradient_problem(self) -> str | None:
        """The first span of this rank whose gradient is not finite, or None. Call it before
        :meth:`Exchange.synchronize`, which may use that memory."""
        grads = OwnedArray("", self._arena.grads, [(0, self._arena.count)], False)
        return _first_nonfinite(self._ops, self._arena.spans, grads)

    def check(self, when: str, gradient: str | None = None, comparing: bool = True) -> None:
        """Raise, on every rank, DivergedError if weights or the optimizer's state are not finite; and, ``comparing``,
        ReplicaError if ranks differ. Collective, after :meth:`Exchange.synchronize`.

        when:     "after iteration 12"
        gradient: the result of :meth:`gradient_problem`
        """
        weights = OwnedArray(WEIGHTS, self._arena.weights, [(0, self._arena.count)], True)
        kept = [weights, *self._exchange.owned_state.arrays()]
        alike = [each for each in kept if each.alike] if comparing and self._compares else []
        digests = [digest for each in alike for digest in self._digests(each)]
        nonfinite = ((each.name, _first_nonfinite(self._ops, self._arena.spans, each)) for each in kept)
        problem = next(((name, span) for name, span in nonfinite if span is not None), None)  # of this rank
        whole = hashlib.sha256("".join(digests).encode()).hexdigest() if self._compares else None
        report = [whole, problem, gradient, socket.gethostname()]
        wholes, problems, gradients, hosts = zip(*self._transport.gather_json(report), strict=True)
        if any(problems):
            raise everywhere(DivergedError(_describe_nonfinite(when, problems, gradients, hosts)))
        compared = [digest for digest in wholes if digest is not None]
        if len(set(compared)) > 1:
            text = self._describe_difference(when, alike, digests, compared, hosts) if self._compares else ""
            raise everywhere(ReplicaError(self._transport.gather_json(text)[0]))

    def _digests(self, kept: OwnedArray) -> list[str]:
        """The digest of each span."""
        host = self._ops.to_host(kept.array)
        return [_digest(host[span.start : span.start + span.count]) for span in self._arena.spans]

    # ── the difference ────────────────────────────────────────────────────────────────────────────────────────
    def _describe_difference(
        self, when: str, alike: Sequence[OwnedArray], digests: list[str], wholes: Sequence[str], hosts: Sequence[str]
    ) -> str:
        alike_ranks = self._alike
        assert alike_ranks is not None, "this rank has a whole network"
        index = _first_differing(alike_ranks.gather_json(digests))
        kept, span = alike[index // len(self._arena.spans)], self._arena.spans[index % len(self._arena.spans)]
        values = self._ops.to_host(kept.array[span.start : span.start + span.count])
        first = _narrow(alike_ranks, values)
        last = values.size - 1 - _narrow(alike_ranks, values[::-1])
        what = kept.name if kept.name == WEIGHTS else f"the optimizer's {kept.name}"
        element = [int(at) for at in np.unravel_index(first, span.shape)]
        by_value = holders(_groups(alike_ranks.gather_json(repr(values[first].item()))))
        return (
            f"replicas differ {when}: {_describe_ranks(wholes, hosts)}. The first difference is in {what} of "
            f"{span.name!r}, elements {first} to {last} of {values.size}; at {element} there is {by_value}. Every rank "
            "made the same updates, so memory, the network or a processor of another kind is at fault: check that "
            "node. This state is not saved; go on from an earlier checkpoint with --resume"
        )


def _digest(content: np.ndarray) -> str:
    return hashlib.blake2b(np.ascontiguousarray(content).data, digest_size=DIGEST_BYTES).hexdigest()


def _first_nonfinite(ops: Ops, spans: Sequence[Span], kept: OwnedArray) -> str | None:
    """The name of the first span with an element that is not finite."""
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
    return next(index for index, row in enumerate(zip(*everyone, strict=True)) if len(set(row)) > 1)


def _narrow(transport: Transport, values: np.ndarray) -> int:
    """The first element that differs between ranks; collective."""
    start, stop = 0, values.size
    while stop - start > 1:
        edges = np.linspace(start, stop, min(FAN, stop - start) + 1).astype(int).tolist()
        digests = [_digest(values[a:b]) for a, b in pairwise(edges)]
        block = _first_differing(transport.gather_json(digests))
        start, stop = edges[block], edges[block + 1]
    return start


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────────────────
def _groups(values: Sequence[str]) -> dict[str, list[int]]:
    """Ranks by value: the largest group first; of equal ones, the group of the lowest rank."""
    return dict(sorted(ranks_by_value(values).items(), key=lambda each: (-len(each[1]), each[1][0])))


def _describe_ranks(wholes: Sequence[str], hosts: Sequence[str]) -> str:
    most, *others = _groups(wholes).values()
    wrong = sorted(rank for group in others for rank in group)
    have = "has" if len(wrong) == 1 else "have"
    differing = f"{placed(wrong, hosts)} {have} other bits than {placed(most, hosts)}"
    if len(most) == len(others[0]):
        return f"{differing}; two groups are equally large, so ringtrain cannot tell which of them is right"
    return f"{differing}, which {'agrees' if len(most) == 1 else 'agree'}"


def _describe_nonfinite(when: str, problems: Sequence, gradients: Sequence[str | None], hosts: Sequence[str]) -> str:
    ranks = [rank for rank, problem in enumerate(problems) if problem]
    what, span = problems[ranks[0]]
    named = "weights are" if what == WEIGHTS else f"the optimizer's {what} is"
    gradient = next(filter(None, gradients), None)
    cause = f"; the last gradient is not finite either, {gradient!r} first" if gradient else ""
    return (
        f"{named} not finite, {span!r} first {when}, on {placed(ranks, hosts)}{cause}; this state is not saved. Lower "
        "--lr, add --warmup or --clip-norm, and go on from an earlier checkpoint with --resume"
    )
