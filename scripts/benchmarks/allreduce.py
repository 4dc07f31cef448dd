"""`bench-allreduce` in several launches, since one is no measurement; with contestants that it does not have:

communicator  Communicator.allreduce(array, out=array) of an ordinary NumPy array
prepared      Communicator.prepare(array) of an array of Communicator.empty, started again and again
gloo          torch's, on tensors of its own or in the shared window, where it is faster; installs torch

Every launch measures all of them interleaved, and numbers of ranks take turns. Prints a Markdown table of the least,
the median and the greatest of the launches' ratios to the MPI's own, and writes allreduce-K-ranks.md, .json and .png.
"""

import argparse
import importlib.util
import shlex
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from pathlib import Path

from contestants import (
    COMMUNICATOR,
    CONTESTANTS,
    GLOO,
    MEMORIES,
    PREPARED,
    TENSOR,
    by_communicator,
    by_gloo,
    by_preparing,
    memory_of,
    tensor_memory,
)

from ringtrain import Communicator
from ringtrain.allreduce.catalogue import ALGORITHMS, AUTO, NATIVE
from ringtrain.allreduce.tuning_file import find_tuning
from ringtrain.bench.measure.buffers import HostBuffers
from ringtrain.bench.measure.timing import Protocol
from ringtrain.bench.sweep import files, plots, tables
from ringtrain.bench.sweep.launches import markdown, merged
from ringtrain.bench.sweep.sizes import parse_bytes, parse_names, swept
from ringtrain.bench.sweep.sweep import Sweep, Watcher, sweep
from ringtrain.cli.world import in_world
from ringtrain.errors import UsageError
from ringtrain.monitor.guarded_transport import bare

TORCH = "torch==2.13.0"
ROOT = Path(__file__).parents[2]
DEFAULT = (NATIVE, AUTO, PREPARED, COMMUNICATOR)


# ── a rank ────────────────────────────────────────────────────────────────────────────────────────────────────
def rank_main(transport, options) -> None:
    transport = bare(transport)
    with ExitStack() as stack:
        baselines, memories, told = {}, {}, {}
        if {COMMUNICATOR, PREPARED} & set(options.algorithm):
            communicator = stack.enter_context(Communicator())
            baselines |= {COMMUNICATOR: by_communicator(communicator), PREPARED: by_preparing(communicator)}
            memories |= {PREPARED: memory_of(communicator)}
        if GLOO in options.algorithm:
            told["torch"] = _join_gloo(transport, options.meet, stack)
            baselines |= {GLOO: by_gloo}
            memories |= {TENSOR: tensor_memory}
        asked = replace(
            _asked(options, baselines), tuning=find_tuning(transport, None).table
        )  # the Communicator's, too
        with transport.activity.during("a sweep"):
            result = sweep(transport, asked, _watcher(transport.rank), HostBuffers(transport, memories))
        if transport.rank == 0:
            files.write_json(options.json, result.header | told, result.rows)


def _join_gloo(transport, meet: str, stack: ExitStack) -> str:
    """torch's version."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)  # as every other contestant
    dist.init_process_group(GLOO, init_method=f"file://{meet}", rank=transport.rank, world_size=transport.size)
    stack.callback(dist.destroy_process_group)
    return torch.__version__


def _asked(options, baselines: dict) -> Sweep:
    plain = Sweep(())
    return Sweep(
        sizes=options.sizes,
        algorithms=options.algorithm,
        protocol=Protocol(repeats=options.iterations, warm_up=options.warm_up, fresh=not options.warm),
        baselines=baselines,
        memories={**plain.memories, **MEMORIES},
    )


def _watcher(rank: int) -> Watcher:
    if rank != 0:
        return Watcher()

    def begun(header: dict) -> None:
        columns[:] = tables.table_columns(header)
        tell("\n".join([*tables.header_lines(header), *tables.titles(columns)]))

    columns: list = []
    return Watcher(begun, lambda rows: tell("\n".join(tables.row_line(row, columns) for row in rows)))


# ── launches ──────────────────────────────────────────────────────────────────────────────────────────────────
def measure(options) -> tuple[dict[int, list[dict]], bool]:
    """Sweeps by number of ranks, and whether every launch ended well: one that fails is the last."""
    sweeps: dict[int, list[dict]] = {ranks: [] for ranks in options.ranks}
    with tempfile.TemporaryDirectory() as folder:
        for number, ranks in product(range(1, options.launches + 1), options.ranks):
            what = f"launch {number} of {options.launches}, {ranks} ranks"
            tell(f"\n{what}")
            found = launch(options, ranks, Path(folder))
            if found is None:
                complain(f"{what}, failed: no more are started")
                return sweeps, False
            sweeps[ranks].append(found)
    return sweeps, True


def launch(options, ranks: int, folder: Path) -> dict | None:
    """One launch's sweep; None where it failed."""
    path = folder / f"{ranks}.json"
    command = [*launcher(options, ranks), sys.executable, __file__, *sys.argv[1:]]
    with tempfile.TemporaryDirectory() as meeting:
        status = subprocess.run([*command, "--json", str(path), "--meet", f"{meeting}/meet"]).returncode
    return None if status else files.read_json(path)


def launcher(options, ranks: int) -> list[str]:
    """The words that start so many ranks. Raises UsageError."""
    try:
        words = shlex.split(options.launch.replace("{ranks}", str(ranks)))
    except ValueError as error:
        raise UsageError(f"--launch {options.launch}: {error}") from None
    if shutil.which("".join(words[:1])) is None:
        raise UsageError(f"--launch {options.launch}: there is no such program; install an MPI, or name its launcher")
    return words


def write(options, ranks: int, sweeps: list[dict]) -> None:
    found = merged(sweeps)
    base = options.out / f"allreduce-{ranks}-ranks"
    torch = f", torch {found['header']['torch']}" if "torch" in found["header"] else ""
    text = f"`scripts/bench allreduce {shlex.join(options.told)}`, commit {commit()}{torch}.\n{markdown(**found)}\n"
    tell(f"\n{text}")
    base.with_suffix(".md").write_text(text)
    files.write_json(base.with_suffix(".json"), found["header"], found["rows"])
    plots.plot_sweep(found["header"], found["rows"], options.picture(ranks))
    tell(f"{base}.md, {base}.json, {options.picture(ranks)}")


def commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def tell(text: str) -> None:
    print(text, flush=True)


def complain(text: str) -> None:
    print(f"allreduce: {text}", file=sys.stderr, flush=True)


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def read_options() -> argparse.Namespace:
    places = argparse.ArgumentParser(add_help=False)
    places.add_argument("--out", type=Path, default=Path("."), help="folder for the table, the figures, the picture")
    places.add_argument("--figures", type=Path, help="folder for the picture instead")
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind, parents=[places])
    parser.add_argument("--launches", type=int, default=5, help="of each number of ranks")
    parser.add_argument("--ranks", type=numbers, default=[2], help="how many, or several numbers: 2,4")
    parser.add_argument("-b", "--begin", default="64K", help="smallest buffer")
    parser.add_argument("-e", "--end", default="64M", help="largest buffer")
    parser.add_argument("-f", "--factor", type=float, default=4.0)
    parser.add_argument("-n", "--iterations", type=int, default=20)
    parser.add_argument("-w", "--warm-up", type=int, default=5)
    parser.add_argument("--algorithm", default=",".join(DEFAULT), help="names, those above among them, or all")
    parser.add_argument("--warm", action="store_true", help="buffers as the last iteration left them")
    parser.add_argument("--launch", default="mpirun -np {ranks} --bind-to none", help="how ranks are started")
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)  # of a rank
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.launches < 1 or not options.ranks or min(options.ranks) < 2:
        parser.error("give --launches of 1 or more, and --ranks of 2 or more each")
    if options.iterations < 1 or options.warm_up < 0:
        parser.error("give -n of 1 or more, and -w of 0 or more")
    try:
        options.algorithm = parse_names(options.algorithm, (*ALGORITHMS, AUTO, *CONTESTANTS), "algorithm")
        options.sizes = swept(parse_bytes(options.begin), parse_bytes(options.end), options.factor)
    except UsageError as error:
        parser.error(str(error))
    if NATIVE not in options.algorithm:
        parser.error(f"give {NATIVE} among --algorithm: all are compared with it")
    options.told = places.parse_known_args()[1]  # without folders, which are those of one machine
    options.picture = lambda ranks: (options.figures or options.out) / f"allreduce-{ranks}-ranks.png"
    return options


def make_ready(options) -> None:
    """All that could fail after an hour is tried now. Raises UsageError."""
    for ranks in options.ranks:
        launcher(options, ranks)
    for folder in filter(None, (options.out, options.figures)):
        folder.mkdir(parents=True, exist_ok=True)
    for ranks in options.ranks:
        plots.check_plot(options.picture(ranks))
    if GLOO in options.algorithm and importlib.util.find_spec("torch") is None:
        tell(f"installing {TORCH}")
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", TORCH], check=True)


def main() -> int:
    options = read_options()
    if options.json:
        return in_world(lambda transport: rank_main(transport, options))
    try:
        make_ready(options)
        sweeps, all_well = measure(options)
    except UsageError as error:
        complain(str(error))
        return 2
    for ranks, own in sweeps.items():
        if own:
            write(options, ranks, own)
    wrong = any(row["wrong"] for own in sweeps.values() for one in own for row in one["rows"])
    return int(wrong or not all_well)


if __name__ == "__main__":
    sys.exit(main())
