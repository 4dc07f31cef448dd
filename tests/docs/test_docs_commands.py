"""The entry pages and the README work as written: each of their commands is run in a fresh folder, and what they show
is what the program prints, but for figures.

RINGTRAIN_REWRITE_DOCS=1 writes the transcripts anew. Commands in ``long`` run in scripts/check-full.
"""

import pytest

from tests.docs.playing import ROOT, Plan, play

pytestmark = pytest.mark.mpi

NETWORK, SITE, README = ROOT / "docs" / "start-network.md", ROOT / "docs" / "start-site.md", ROOT / "README.md"
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
BENCH, TUNE = "mpirun -np 2 ringtrain bench-allreduce -b 64K -e 64M", "mpirun -np 2 ringtrain tune"
INSTALLS = "installs from the network; what it runs is run here by itself"
PLANS = {
    NETWORK: Plan(),
    SITE: Plan(
        more={BENCH: "-e 256K -n 2 -w 0", TUNE: "-e 4K -n 3 -w 0 --passes 1"},
        long=(BENCH, TUNE),
        absent={
            "module load openmpi": "of a site",
            ". venv/bin/activate": "of that environment",
            "python3 -m venv venv && venv/bin/pip install '.[plot,images,safetensors]'": INSTALLS,
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
        more={"mpirun -np 2 ringtrain train": "--epochs 1"},
        absent={
            "mpirun -np 2 python -m ringtrain.torch train.py": "needs torch: tests/docs/test_docs_pages.py runs it",
            "scripts/quickstart": INSTALLS,
            "python3 -m venv venv && venv/bin/pip install .": INSTALLS,
        },
    ),
}


@pytest.mark.parametrize("document", PLANS, ids=lambda path: path.name)
def test_every_command_works_and_prints_what_is_shown(document, stage):
    play(document, stage, PLANS[document])
