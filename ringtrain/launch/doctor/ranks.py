"""Checks between ranks: one-sided additions, fault tolerance, links between nodes."""

import statistics
from collections.abc import Sequence

import numpy as np

from ringtrain.bench.measure.buffers import HostBuffers
from ringtrain.bench.sweep.pairs import measure_pairs, sick
from ringtrain.errors import TransportError
from ringtrain.humanize import format_rate, format_seconds, plural
from ringtrain.launch import texts
from ringtrain.launch.doctor.doctor import OK, WARN, DoctorContext, Line
from ringtrain.transport.world import fault_tolerance

OSC = "OMPI_MCA_osc"


def one_sided(context: DoctorContext) -> list[Line]:
    """Check that all ranks can add to counters of rank 0, and fetch from them; collective."""
    transport = context.transport
    try:
        tally = transport.counters(2)
        tally.add(0, np.ones(1))
        ticket = tally.take(1, 1.0)
        transport.barrier()
        added, taken = tally.read().tolist()
    except TransportError as error:
        return [Line(WARN, "one-sided", str(error), texts.ONE_SIDED_TRY)]
    tickets = sorted(transport.gather_json(ticket))
    if (added, taken) != (transport.size, transport.size) or tickets != list(range(transport.size)):
        ranks = plural(transport.size, "rank")
        text = f"windows of the MPI do not add up: {ranks} each added 1, and found {added:g}; tickets are {tickets[:8]}"
        return [Line(WARN, "one-sided", text, texts.ONE_SIDED_TRY)]
    setting = f", {OSC}={context.environ[OSC]}" if OSC in context.environ else ""
    return [Line(OK, "one-sided", f"windows of the MPI add up{setting}")]


def faults(context: DoctorContext) -> list[Line]:
    """Check whether survivors can continue after a rank has died."""
    if "no MPI" in context.transport.describe():
        return []
    built, started = fault_tolerance()
    if not built:
        return [Line(OK, "fault tolerance", f"this MPI has no ULFM, so no --elastic; {texts.ULFM_RESUME}")]
    if not started:
        return [
            Line(
                OK,
                "fault tolerance",
                f"ULFM is built in, and off; {texts.ULFM_RESUME}",
                "for --elastic: mpirun --with-ft ulfm",
            )
        ]
    pml = context.environ.get("OMPI_MCA_pml", "ob1")
    if pml != "ob1":
        return [
            Line(
                WARN,
                "fault tolerance",
                f"ULFM is on, but messages use pml {pml}, so no --elastic",
                "ULFM needs ob1, not UCX: unset OMPI_MCA_pml, or start without --with-ft ulfm",
            )
        ]
    return [Line(OK, "fault tolerance", "ULFM is on: with --elastic survivors go on after a rank's death")]


def links(context: DoctorContext) -> list[Line]:
    """Measure links between nodes, of one rank each, and name the node that stands out; collective."""
    transport = context.transport
    if transport.nodes == 1:
        return []
    every = transport.gather_json([context.host, transport.node])
    nodes = [node for _, node in every]
    alike = len({host for host, _ in every}) < transport.nodes
    names = [f"node {node} of {host}" if alike else host for host, node in every]
    pairs = in_circle([nodes.index(node) for node in dict.fromkeys(nodes)])
    rows = measure_pairs(HostBuffers(transport), 0, pairs=pairs)
    latency = format_seconds(statistics.median(row["latency_s"] for row in rows))
    rate = format_rate(statistics.median(row["bytes_per_s"] for row in rows))
    text = f"{latency}, {rate} ({plural(len(rows), 'pair')})"
    found = "; ".join(sick(rows, names))
    if found:
        return [
            Line(
                WARN,
                "links",
                f"{text}, but {found}",
                "every step waits for the slowest: leave it out; ringtrain bench-allreduce --pairs maps all",
            )
        ]
    return [Line(OK, "links", text)]


def in_circle(ranks: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of each rank with the next and the next but one: all pairs of up to five ranks."""
    count = len(ranks)
    steps = [(place, (place + step) % count) for step in (1, 2) for place in range(count)]
    return list(dict.fromkeys((ranks[min(both)], ranks[max(both)]) for both in steps if both[0] != both[1]))
