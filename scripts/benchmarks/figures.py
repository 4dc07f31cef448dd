"""The picture of docs/bench.md, measured and drawn on this machine by `bench-allreduce` itself.

Measure it on a quiet one: the title of the picture says what was in the way.
"""

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "figures"
# Enough to tell families of algorithms apart, and few enough to tell curves apart.
ALGORITHMS = "mpi,auto,sliced,ring,double-tree"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("-b", "--begin", default="64K", help="smallest buffer")
    parser.add_argument("-e", "--end", default="64M", help="largest buffer")
    parser.add_argument("-n", "--iterations", type=int, default=30)
    parser.add_argument("--algorithm", default=ALGORITHMS, help="names, mpi among them, or all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the picture")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    picture = options.out / f"allreduce-{options.ranks}-ranks.png"
    command = ["mpirun", "-np", str(options.ranks), "--bind-to", "none", sys.executable, "-m", "ringtrain"]
    command += ["bench-allreduce", "-b", options.begin, "-e", options.end, "-f", "2", "-n", str(options.iterations)]
    command += ["--algorithm", options.algorithm, "--plot", str(picture)]
    status = subprocess.run(command).returncode
    if status == 0:
        print(f"drawn in {picture}")
    return status


if __name__ == "__main__":
    sys.exit(main())
