"""The tutorial and the README work as written: each of their commands is run in a fresh folder, and what they show is
what the program prints, but for figures.

RINGTRAIN_REWRITE_DOCS=1 writes the transcripts anew. Commands in ``long`` run in scripts/check-full.
"""

import pytest

from tests.docs.playing import ROOT, Plan, play

pytestmark = pytest.mark.mpi

TUTORIAL, README = ROOT / "docs" / "tutorial.md", ROOT / "README.md"
PLUGINS, LAB = ROOT / "docs" / "plugins.md", ROOT / "docs" / "lab.md"
ANSWER = f"cp {ROOT / 'tests' / 'docs' / 'lab_answer.py'} mine.py"
SKELETON = "mpirun -np 2 ringtrain train --plugin mine.py --sync mine --epochs 1"
OWN_STRATEGY = "mpirun -np 4 ringtrain train --plugin mine.py --sync mine --dtype float64 --epochs 2 --out runs/mine"
FROM_SERIAL, FROM_STAR = (f"python differ.py {name}.csv mine.csv" for name in ("serial", "star"))
FIVE = (
    'mpirun -np 4 ringtrain compare --sync "allreduce,sharded,averaging --average-every 8,gossip,delayed" -- --epochs 2'
)
BESIDE_RING = 'mpirun -np 4 ringtrain compare --plugin mine.py --sync "allreduce --algorithm ring,mine" -- --epochs 2'
ON_HOSTS = (
    "scripts/cluster run -n 4 --rate 100mbit -- ringtrain bench-allreduce --algorithm ring,tree -b 1K -e 1M -f 1024"
)
ON_A_CLUSTER = "mpirun -np 4 venv/bin/ringtrain train --model resnet20 --data cifar10.h5"
COMPARE = (
    'mpirun -np 2 ringtrain compare --sync "allreduce,sharded,averaging --average-every 4" '
    "-- --model lenet --data fashion.h5"
)
TORCH = "needs torch: tests/docs/test_docs_pages.py runs it"
SCRIPT_VARIANTS = 'ringtrain compare -n 2 --sync "allreduce,gossip" -- python -m ringtrain.torch train.py'
INSTALLS = "installs from the network; what it runs is run here by itself"
PLANS = {
    TUTORIAL: Plan(
        instead={
            ON_A_CLUSTER: "mpirun -np 4 ringtrain train --model resnet20 --data cifar10.h5",
            "sbatch -N2 --ntasks-per-node=2 -t 4:00:00 scripts/train.sbatch --model resnet20 --data cifar10.h5": (
                "ringtrain slurm -N 2 --ranks-per-node 2 -t 4:00:00 -- --model resnet20 --data cifar10.h5"
            ),
        },
        more={
            ON_A_CLUSTER: "--iterations 1",
            "mpirun -np 2 ringtrain train --model small.toml --data mine.h5 --out runs/small": "--epochs 3",
        },
        long=(
            ON_A_CLUSTER,
            "mpirun -np 2 ringtrain train --config run.toml --epochs 2",
            "mpirun --oversubscribe -np 3 ringtrain train --out runs/again --resume auto --epochs 5",
        ),
        absent={
            "scripts/quickstart": INSTALLS,
            ". .venv/bin/activate": "of the environment that scripts/quickstart makes",
            "module load openmpi": "of a site",
            "python3 -m venv venv && venv/bin/pip install '.[plot]'": INSTALLS,
        },
    ),
    PLUGINS: Plan(
        long=(
            "mpirun -np 2 ringtrain train --plugin own.py --resume runs/own --sync blocking "
            "--plugin-option pieces=4 --algorithm auto "
            "--epochs 2",
        ),
    ),
    LAB: Plan(
        instead={
            SKELETON: f"! {SKELETON} > said 2>&1 && grep -q '^ringtrain: replicas differ' said",
            OWN_STRATEGY: f"{ANSWER} && {OWN_STRATEGY}",
            FROM_SERIAL: f"{FROM_SERIAL} | grep -E 'e-1[4-6]$'",
            FROM_STAR: f"{FROM_STAR} | grep -x 0.0",  # masks hide figures, and this is the claim
        },
        more={"mpirun -np 4 ringtrain bench-allreduce --algorithm ring,tree,mpi -b 1K -e 1M": "-n 2 -w 0"},
        long=(FIVE, BESIDE_RING),
        absent={ON_HOSTS: "tests/cluster has it, which is skipped where there are no namespaces"},
    ),
    README: Plan(
        more={
            "mpirun -np 2 ringtrain train": "--epochs 1",
            "mpirun -np 2 ringtrain train --model lenet --data fashion.h5 --out runs/first": "--epochs 1",
            "mpirun --oversubscribe -np 3 ringtrain train --out runs/first --resume auto --epochs 20": "--epochs 2",
            COMPARE: "--epochs 1",
            "ringtrain time alexnet": "--batch 1 --iterations 1 --warm-up 0",
            "ringtrain doctor": "--quick",
            "mpirun --with-ft ulfm -np 2 ringtrain train --elastic --out runs/second": "--epochs 1",
            "mpirun -np 2 ringtrain bench-allreduce -b 64K -e 64M": "-e 256K -n 2 -w 0",
            "mpirun -np 2 ringtrain tune": "-e 4K -n 3 -w 0 --passes 1",
        },
        long=(
            "mpirun -np 2 ringtrain train --model lenet --data fashion.h5 --out runs/first",
            "mpirun --oversubscribe -np 3 ringtrain train --out runs/first --resume auto --epochs 20",
            "ringtrain evaluate runs/first --best",
            "ringtrain predict runs/first -o predictions.csv",
            "ringtrain report runs/first",
            "ringtrain export runs/first -o lenet.onnx",
            COMPARE,
            "ringtrain scale -n 1,2 -o scale.pdf -- train --iterations 60",
            "ringtrain time alexnet",
            "mpirun --with-ft ulfm -np 2 ringtrain train --elastic --out runs/second",
            "mpirun -np 2 ringtrain bench-allreduce -b 64K -e 64M",
            "mpirun -np 2 ringtrain tune",
        ),
        absent={
            "mpirun -np 2 python -m ringtrain.torch train.py": TORCH,
            "mpirun -np 2 python -m ringtrain.torch --sync averaging --average-every 32 train.py": TORCH,
            SCRIPT_VARIANTS: TORCH,
            "scripts/quickstart": INSTALLS,
            "scripts/test": "is what runs this",
            "scripts/cluster run -n 2 --ranks 2 --rate 1gbit -- ringtrain bench-allreduce": (
                "hosts want namespaces of the kernel: tests/cluster has them"
            ),
        },
    ),
}


@pytest.mark.parametrize("document", PLANS, ids=lambda path: path.name)
def test_every_command_works_and_prints_what_is_shown(document, stage):
    play(document, stage, PLANS[document])
