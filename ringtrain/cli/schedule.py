"""The command ``ringtrain schedule``: show, verify, cost and draw. No MPI is needed."""

import click
from rich.text import Text

from ringtrain.cli.hints import CommandGroup
from ringtrain.cli.options import NUMBERS, Listed, Size, plugin_option
from ringtrain.collectives import texts as collectives_texts
from ringtrain.collectives.algorithms.canonical import canonical
from ringtrain.collectives.catalogue import GOALS, SCHEDULES, make_schedule
from ringtrain.collectives.execution.node_program import canonical_program
from ringtrain.collectives.inspect.cost import MOST_RANKS as MOST_COSTED
from ringtrain.collectives.inspect.cost import Fabric, least_s, schedule_cost
from ringtrain.collectives.inspect.draw import MOST_RANKS as MOST_DRAWN
from ringtrain.collectives.inspect.draw import picture, schedule_table, step_text
from ringtrain.collectives.proof import addition_order
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.collectives.schedule import ALL_REDUCE
from ringtrain.collectives.topology import even, requested
from ringtrain.errors import UsageError
from ringtrain.show.output import echo
from ringtrain.show.tables import boxed_table, print_whole

CANONICAL, SHARDS = "canonical", 8
VERIFIED = 128  # ranks; every expression of every chunk is kept
SHOWN = 32
ROUNDED = 0.5  # of the bytes of float32 are in messages of 16 bits


@click.group(cls=CommandGroup)
def schedule():
    """Show an all-reduce: its steps, its proof, its time on a machine, its picture.

    NAME is a value of --algorithm of `ringtrain train` (`ringtrain schedule list` has them all), or `canonical`, by
    which --reproducible adds the gradients of --shards.
    """


def _options(command):
    for option in (
        click.option("--shards", type=click.IntRange(1), help="Shards of the batch, for canonical and proofs. [8]"),
        click.option("--rounded", is_flag=True, help="Messages of 16 bits: owners round the sums that they send."),
        click.option(
            "--goal", type=click.Choice(GOALS), default=GOALS[0], help="The whole all-reduce, or one of its halves."
        ),
        click.option("--nodes", type=NUMBERS, help="Number of nodes; or the ranks of each, such as 4,2,3. [1]"),
        click.option("-n", "--ranks", type=int, help="Ranks, divided among the nodes as evenly as possible. [4]"),
        click.argument("name"),
        plugin_option,
    ):
        command = option(command)
    return command


@schedule.command("list")
@plugin_option
def list_schedules():
    """List the schedules that --algorithm knows.

    Rounds, messages and bytes are those of 8 ranks on 2 nodes.
    """
    rows = []
    for name in SCHEDULES:
        schedule = make_schedule(name, even(8, 2))
        proof = verify_schedule(schedule)
        rows.append((name, proof.rounds, max(proof.messages), f"{max(proof.sent) / schedule.chunks:.4g} n"))
    _print_table(("schedule", "rounds", "messages a rank", "bytes a rank"), rows)
    echo("at most, of 8 ranks on 2 nodes; n is the buffer. Any pair: hierarchical:INNER:OUTER")


@schedule.command()
@_options
@click.option("--rank", type=int, help="Show this rank alone. [all]")
def show(name, ranks, nodes, goal, rounded, shards, rank):
    """Show NAME step by step, as every rank takes it."""
    schedule, topology = _make(name, ranks, nodes, goal, rounded, shards)
    if rank is None:
        _limit(topology, SHOWN, "showing all ranks", "name one with --rank")
    elif not 0 <= rank < topology.size:
        raise UsageError(f"--rank {rank}: the ranks are 0 to {topology.size - 1}")
    echo(f"{schedule!r}: {schedule.goal}")
    for one in range(topology.size) if rank is None else [rank]:
        echo(f"rank {one}: sends at most {schedule.max_chunks_sent(one)} chunks; the buffer has {schedule.chunks}")
        for number, step in enumerate(schedule.steps(one)):
            echo(f"  {number:3}  {step_text(step, one)}")
    echo(collectives_texts.LEGEND)


@schedule.command()
@_options
def verify(name, ranks, nodes, goal, rounded, shards):
    """Prove NAME right for a number of ranks.

    Each contribution is added exactly once, nothing deadlocks, nothing is overwritten while it is read, all ranks
    round alike, and no rank sends more than the schedule states. With --shards also: the gradients of the shards are
    added in the one tree that --reproducible needs.
    """
    schedule, topology = _make(name, ranks, nodes, goal, rounded, shards if name == CANONICAL else None)
    _limit(topology, VERIFIED, "a proof", "prove it for fewer")
    in_tree = SHARDS if name == CANONICAL and shards is None else shards
    if in_tree is None:
        proof = verify_schedule(schedule, rounds=rounded)
    elif rounded:
        raise UsageError(f"--shards {in_tree} adds gradients without rounding: leave --rounded out")
    else:
        if name == CANONICAL:  # in shared memory it is another program
            addition_order.prove_node_program(canonical_program(schedule.size, in_tree), in_tree)
        proof = addition_order.prove(schedule, in_tree)
    over = ", over messages that are rounded" if rounded else ""
    echo(f"{schedule!r} is proved: {schedule.goal}{over}")
    if in_tree is not None:
        where = ", by messages and in memory that the ranks share" if name == CANONICAL else ""
        echo(f"shards             {in_tree}, added in one tree{where}")
    sent = _range([sent / schedule.chunks for sent in proof.sent])
    echo(
        f"rounds             {proof.rounds}",
        f"messages a rank    {_range(proof.messages)}",
        f"bytes a rank       {sent} of the buffer",
    )


@schedule.command()
@_options
@click.option("--bytes", "sizes", type=Listed(Size()), help="Sizes of the buffers, as 64K,4M. [1K to 256M]")
@click.option("--alpha-us", default=2.0, show_default=True, help="Latency between nodes, microseconds.")
@click.option("--gbit-s", default=100.0, show_default=True, help="Rate of a node's interface, each way, Gbit/s.")
@click.option("--local-alpha-us", default=0.5, show_default=True, help="Latency within a node, microseconds.")
@click.option("--local-gb-s", default=10.0, show_default=True, help="Rate between two ranks of a node, GB/s.")
@click.option("--add-gb-s", default=10.0, show_default=True, help="Rate of adding, GB/s.")
@click.option("--message-us", default=0.5, show_default=True, help="A rank's own time for a message, microseconds.")
def cost(name, ranks, nodes, goal, rounded, shards, sizes, **rates):
    """Predict the time of NAME, or of several such as ring,tree, on a machine.

    Each node has one network interface, which its ranks share. `of bound` is the share of the rate that no schedule
    of messages can exceed.
    """
    topology, fabric, rows, travels = requested(ranks, nodes), _fabric(**rates), [], ROUNDED if rounded else 1.0
    _limit(topology, MOST_COSTED, "a prediction", "predict for fewer")
    schedules = [_make(each, ranks, nodes, goal, rounded, shards)[0] for each in name.split(",")]
    for nbytes in sizes or [1 << k for k in range(10, 29, 2)]:
        for schedule in schedules:
            predicted = schedule_cost(schedule, topology, nbytes, fabric, travels)
            least = travels * least_s(schedule, topology, nbytes, fabric)
            share = least / predicted.seconds if predicted.seconds else 1.0
            figures = (f"{1e6 * predicted.seconds:,.1f}", f"{max(predicted.interface):,.0f}", f"{100 * share:.1f} %")
            rows.append((f"{nbytes:,}", schedule.name, *figures))
    for schedule in schedules:
        echo(f"{schedule!r} on nodes of {', '.join(map(str, topology.counts))} ranks")
    echo(
        "assumed: {alpha_us:g} µs and {gbit_s:g} Gbit/s between nodes, {local_alpha_us:g} µs and {local_gb_s:g} GB/s "
        "within one, adding {add_gb_s:g} GB/s, a message {message_us:g} µs".format(**rates)
    )
    _print_table(("bytes", "schedule", "microseconds", "bytes an interface sends", "of bound"), rows)


@schedule.command()
@_options
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="A picture: .svg, .png, .pdf. [a table here]")
def draw(name, ranks, nodes, goal, rounded, shards, output):
    """Draw NAME: a table of rounds and ranks, or a picture."""
    schedule, topology = _make(name, ranks, nodes, goal, rounded, shards)
    _limit(topology, MOST_DRAWN, "a drawing", "draw fewer")
    if output:
        picture(schedule, topology, output)
        echo(f"{schedule!r} is drawn in {output}")
        return
    echo(repr(schedule))
    titles = ("round", *(f"rank {rank}" for rank in range(schedule.size)))
    _print_table(titles, [(number, *map(Text, row)) for number, row in enumerate(schedule_table(schedule))], lines=True)
    echo(collectives_texts.LEGEND)


def _make(name, ranks, nodes, goal, rounded, shards):
    topology = requested(ranks, nodes)
    if name == CANONICAL:
        schedule = _canonical(topology, goal, rounded, shards or SHARDS)
    elif shards is None:
        schedule = make_schedule(name, topology, goal, rounded)
    else:
        raise UsageError(f"--shards {shards} is for {CANONICAL} and for `ringtrain schedule verify`: leave it out")
    return schedule, topology


def _canonical(topology, goal: str, rounded: bool, shards: int):
    if rounded or goal != ALL_REDUCE:
        what = "--rounded" if rounded else f"--goal {goal}"
        raise UsageError(f"{CANONICAL!r} adds whole gradients, all of them: leave {what} out")
    return canonical(topology.size, shards)


def _limit(topology, most: int, what: str, instead: str) -> None:
    if topology.size > most:
        raise UsageError(f"{topology.size} ranks are too many for {what}: at most {most}; {instead}")


def _fabric(alpha_us, gbit_s, local_alpha_us, local_gb_s, add_gb_s, message_us):
    for flag, rate in (("--gbit-s", gbit_s), ("--local-gb-s", local_gb_s), ("--add-gb-s", add_gb_s)):
        if not rate > 0:
            raise UsageError(f"{flag} {rate:g}: wanted a rate above 0")
    return Fabric(
        alpha_s=1e-6 * alpha_us,
        beta_s=8e-9 / gbit_s,
        local_alpha_s=1e-6 * local_alpha_us,
        local_beta_s=1e-9 / local_gb_s,
        gamma_s=1e-9 / add_gb_s,
        o_s=1e-6 * message_us,
    )


def _range(numbers) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _print_table(titles, rows, lines: bool = False) -> None:
    """Print a table as wide as its cells: one cut to the terminal would lose ranks."""
    print_whole(boxed_table(titles, rows, titles if lines else ("schedule",), titles, lines))
