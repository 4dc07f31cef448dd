"""torch's gloo beside the schedules and the MPI: one interleaved run of `bench-allreduce`, the same checks.

Installs torch, which nothing else of ringtrain needs to run, into the environment of scripts/bench.
"""

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

from ringtrain.bench import files, tables
from ringtrain.bench.choose import choose
from ringtrain.bench.sizes import parse_bytes, swept
from ringtrain.bench.sweep import Sweep, Watcher, sweep
from ringtrain.bench.timing import Protocol
from ringtrain.bench.trials import Refusal
from ringtrain.exchange.reductions import ALGORITHMS
from ringtrain.transport.world import connect

TORCH = "torch==2.13.0"
GLOO = "gloo"


def prepare_gloo(job):
    """gloo's all-reduce of a job, on the very memory that the others use."""
    import numpy as np
    import torch
    from torch.distributed import ReduceOp, all_reduce

    if job.numbers.name == "bfloat16":
        raise Refusal("bfloat16 is kept as uint16 here, which gloo would sum as whole numbers")
    tensor = torch.from_numpy(job.target)
    op = {"max": ReduceOp.MAX, "min": ReduceOp.MIN}.get(job.op, ReduceOp.SUM)

    def run() -> None:
        if job.source is not None:
            np.copyto(job.target, job.source)
        all_reduce(tensor, op)

    return run


def rank_main(options) -> int:
    import torch
    import torch.distributed as dist

    transport = connect()
    torch.set_num_threads(1)
    dist.init_process_group(GLOO, init_method=f"file://{options.meet}", rank=transport.rank, world_size=transport.size)
    asked = Sweep(
        sizes=swept(parse_bytes(options.begin), parse_bytes(options.end), options.factor),
        algorithms=choose(options.algorithm, (*ALGORITHMS, GLOO), "algorithm"),
        protocol=Protocol(repeats=options.iterations),
        rivals={GLOO: prepare_gloo},
    )
    result = sweep(transport, asked, _watcher() if transport.rank == 0 else None)
    if transport.rank == 0:
        tell("\n".join(tables.fit_lines(result.header["fits"])))
        if options.json:
            files.write_json(options.json, result.header | {"torch": torch.__version__}, result.rows)
    dist.destroy_process_group()
    transport.close()
    return 0


def _watcher() -> Watcher:
    def begun(header: dict) -> None:
        columns[:] = tables.columns_of(header)
        tell("\n".join([*tables.header_lines(header), *tables.titles(columns)]))

    columns: list = []
    return Watcher(begun, lambda rows: tell("\n".join(tables.line(row, columns) for row in rows)))


def tell(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("-b", "--begin", default="64K", help="smallest buffer")
    parser.add_argument("-e", "--end", default="64M", help="largest buffer")
    parser.add_argument("-f", "--factor", type=float, default=4.0)
    parser.add_argument("-n", "--iterations", type=int, default=20)
    parser.add_argument("--algorithm", default="all", help="names, gloo and mpi among them, or all")
    parser.add_argument("--json", type=Path, help="file to write, raw samples too")
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.meet:
        return rank_main(options)
    if importlib.util.find_spec("torch") is None:
        tell(f"installing {TORCH}")
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", TORCH], check=True)
    with tempfile.TemporaryDirectory() as folder:
        command = ["mpirun", "-np", str(options.ranks), sys.executable, __file__, *sys.argv[1:]]
        return subprocess.run([*command, "--meet", f"{folder}/meet"]).returncode


if __name__ == "__main__":
    sys.exit(main())
