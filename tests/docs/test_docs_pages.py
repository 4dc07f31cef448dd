"""The commands of the other pages work as written, as those of the entry pages do: scripts/check-full runs them."""

import io
import tarfile

import h5py
import numpy as np
import pytest
from PIL import Image

from tests.data.source_makers import cifar10_python
from tests.docs import test_docs_commands
from tests.docs.markdown import blocks, steps
from tests.docs.playing import ROOT, Plan, Stage, play
from tests.docs.test_docs_links import DOCUMENTS
from tests.tiers import daily

pytestmark = pytest.mark.mpi

FASHION = "ringtrain data make DOWNLOADS/fashion-mnist -o fashion.h5"
NAMES_A_PROCESS = "has a number or name in it that a reader puts there"
ON_SLURM = "needs a Slurm: tests/slurm submits jobs to one"
TOO_SMALL = "mpirun -np 4 ringtrain train --batch 2"
HYBRID = "mpirun -np 4 ringtrain train --model alexnet --data F.h5 --batch 128 --fc hybrid"
PIPELINE = "ringtrain train --model alexnet --data imagenet.h5 --fc pipeline"
SMALL = "mpirun -np 4 ringtrain train --model cifar10_quick --data cifar10.h5 --batch 16 --iterations 2 --fc"
BENCH = "mpirun -np 4 ringtrain bench-allreduce"
TIME = "mpirun -np 2 ringtrain time resnet18 --batch 64 --json layers.json"
ON_CPUS = "--model resnet20 --data cifar10.h5 --batch 256"
ON_A_CLUSTER = f"{ON_CPUS} --device cuda"
SLURM = (
    "ringtrain slurm --nodes 2 --gpus 4 --time 4:00:00 --partition gpu --account mine --module openmpi/5.0 "
    f"--output job.sbatch -- {ON_A_CLUSTER}"
)
COMPARE = (
    'mpirun -np 4 ringtrain compare --sync "allreduce,sharded,averaging --average-every 4,server --staleness 2,'
    'delayed" -- --model lenet --data fashion.h5 --iterations 300 --evaluate-every 100'
)
SEEDS = (
    'mpirun -np 4 ringtrain compare --sync "allreduce,averaging --average-every 8" --seeds 2 '
    "-o runs/compare-20261121-123456 -- --model lenet --data fashion.h5 --iterations 2"
)
FILTERED = "ringtrain runs --json - | jq -r '.rows[] | select(.outcome == \"done\" and .options.lr >= 0.01) | .name'"
OVER_SEEDS = "ringtrain compare --over-seeds runs/compare-20261121-123456/*/"
SPREAD = (
    'mpirun -np 2 ringtrain compare --sync "allreduce --algorithm ring,allreduce --compress top-k,averaging '
    '--average-every 8{}" --seeds {} -- --iterations {} --evaluate-every 20'
)
DIVERGES = ",allreduce --lr 1e30"
SCALE = "ringtrain scale -n 1,2,4{} -- train --model resnet20 {}"
TINY = "--batch 8 --batch-norm ghost:2 --iterations 2"
SYNTHETIC = SCALE.format(" --strong --weak -o scale.png", "--synthetic --batch 128 --iterations 30")
OF_SCRIPT = (
    "ringtrain scale -n 1,2,4 --strong --weak --batch 64 -o scale.png -- "
    "python -m ringtrain.torch train.py --batch {batch}"
)
CURVES = (
    'mpirun -np 4 ringtrain compare --sync "allreduce,gossip,averaging --average-every 16" --seeds 3 -o curves -- '
    "--model resnet20 --data cifar10.h5 --batch 128 --iterations 2000 --evaluate-every 50"
)
TARGET = (
    "ringtrain plan resnet20 --layers layers-1.json --fabric between.json --curves curves "
    '--target "loss 1.2" --rates 100mbit,300mbit,1gbit -o target.png'
)
USE = "docs/model-use"
FETCH = (
    'python -c "import torchvision, safetensors.torch as s; s.save_file(torchvision.models.resnet50(weights='
    "'DEFAULT').state_dict(), 'resnet50.safetensors')\""
)
FINE_TUNE = (
    "mpirun -np 4 ringtrain train --model resnet50 --init resnet50.safetensors --classes 3 "
    "--freeze 'conv,norm,stage1.*' --data flowers.h5 --batch 64 --lr 0.01 --epochs 5 --warmup 20 --out runs/flowers"
)
PROFILE = "mpirun -np 1 python -m ringtrain.torch --out runs/profiled --profile train.py"
PROFILED = "ringtrain plan --profile runs/profiled --fabric sweep.json"
SCRIPT = "mpirun -np 2 python -m ringtrain.torch train.py"
PHOTOS = "mpirun -np 2 ringtrain train --model resnet18 --data {} --random-resized-crop"
BOOK = "python -c \"print('To be, or not. ' * 20_000)\" > book.txt"
MAKE_FASHION = "ringtrain data make fashion-mnist -o fashion.h5"
MAKE_CIFAR = "ringtrain data make cifar-10-batches-py.tar.xz -o cifar10.h5"
FEW = " --classes 3 --batch 4 --batch-norm ghost:2 --iterations 1"
SHARDS = "'shards/train-{000..099}.tar'"
PLANS = {
    "docs/all-reduces": Plan(
        more={
            f"{BENCH} -b 64K -e 64M --json sweep.json --plot sweep.png": "-e 256K -n 2 -w 0",
            f"{BENCH} --algorithm auto,ring,mpi --wire all --sizes-of resnet18": "-n 1 -w 0",
            f"{BENCH} --collective all-gather -b 4K -e 64M --json gather.json": "-e 256K -n 2 -w 0",
        },
        absent={
            f"{BENCH} --collective broadcast --algorithm auto,tree,mpi,gloo": "gloo needs torch: tests/mpi has it",
            "scripts/bench allreduce --launches 5 --ranks 2,4": "takes minutes: tests/bench starts it with less",
        },
    ),
    "docs/checkpoints": Plan(
        before=(FASHION,),
        instead={"head -c 512 best.h5 | tr -s ' '": "head -c 512 runs/a/checkpoints/best.h5 | tr -s ' '"},
        more={
            "mpirun -np 4 ringtrain train --model lenet --data fashion.h5 --out runs/a --resume auto": "--epochs 1",
            "mpirun -np 2 ringtrain train --out runs/a --resume auto --epochs 20": "--epochs 2",
        },
    ),
    "docs/data": Plan(
        before=(FASHION, *(f"cp fashion.h5 {name}.h5" for name in ("train-1", "train-2", "test")), BOOK),
        instead={
            MAKE_FASHION: f"{MAKE_FASHION} --force",
            MAKE_CIFAR: f"{MAKE_CIFAR} --force",
            PHOTOS.format("photos"): PHOTOS.format("flowers") + FEW,
            PHOTOS.format(SHARDS): PHOTOS.format(SHARDS.replace("099", "001")) + FEW,
        },
        more={
            "ringtrain train --data fashion.h5": "--epochs 1",
            "mpirun -np 2 ringtrain train --model gpt --data book.h5 --out runs/book": "--iterations 2",
            'ringtrain train --data "train-*.h5" --test-data test.h5': "--epochs 1",
            "ringtrain train --data scans.h5:volumes,labels": "--epochs 1",
            "ringtrain train --data mine.npz": "--epochs 1",
            "ringtrain train --data x.npy,y.npy --test-data xt.npy,yt.npy": "--epochs 1",
        },
        absent={"srun --ntasks-per-node=1 ringtrain data check /local/cifar10.h5": ON_SLURM},
    ),
    "docs/errors": Plan(
        instead={TOO_SMALL: f"! {TOO_SMALL} > said 2>&1; head -n 1 said"},
        more={
            "ringtrain doctor": "--quick",
            "mpirun -np 4 ringtrain doctor": "--quick",
            "mpirun --with-ft ulfm -np 4 ringtrain train --elastic": "--epochs 1",
            "mpirun --with-ft ulfm -np 4 ringtrain train --elastic replace": "--epochs 1",
        },
        absent={
            "srun --mpi=pmix ringtrain doctor --quick --strict": ON_SLURM,
            "kill -USR1 PID_OF_MPIRUN": NAMES_A_PROCESS,
            "kill -USR2 PID_OF_MPIRUN": NAMES_A_PROCESS,
            "kill -USR2 PID_OF_A_RANK": NAMES_A_PROCESS,
            "scancel -s USR2 JOB": ON_SLURM,
            "ringtrain outcome runs/digits-20260131-235959; echo $?": "of a run that lost a rank: tests/mpi kills one",
        },
    ),
    USE: Plan(
        instead={
            FETCH: (
                "ringtrain train --model resnet20 --data cifar10.h5 --iterations 1 --out runs/there && "
                "ringtrain export runs/there -o resnet20.safetensors"
            ),
            FINE_TUNE: FINE_TUNE.replace("resnet50", "resnet20") + " --batch 16 --batch-norm ghost:4 --warmup 2",
        },
        long=(
            "mpirun -np 2 ringtrain predict runs/digits photos -o p.jsonl",
            FETCH,
            "ringtrain data make flowers -o flowers.h5 --size 256 --test-fraction 0.2",
            FINE_TUNE,
            "ringtrain evaluate runs/flowers --best",
            "ringtrain export runs/flowers --best -o flowers.onnx",
            "ringtrain export runs/flowers -o w.safetensors",
            "ringtrain export runs/flowers -o w.onnx --best",
            "ringtrain train --model field.toml --data fields.h5 --loss mse",
            "ringtrain train --model masks.toml --data masks.h5",
            "ringtrain train --model tags.toml --data tags.h5 --loss bce",
            "ringtrain evaluate runs/digits --per-class",
            "ringtrain evaluate runs/digits --confusion",
            "ringtrain evaluate runs/digits -o metrics.json",
        ),
        absent={
            "import torchvision": "scripts/check-torchvision does this",
            "import json": "of the ResNet-50 above",
        },
    ),
    "docs/optimizers": Plan(
        before=("cp cifar10.h5 F.h5",),
        more={
            "ringtrain train --optimizer adam --lr 0.003 --lr-policy cosine --min-lr 0.0001 --ema 0.95 --best-by loss "
            "--early-stop 5": "--epochs 1",
            "mpirun -np 4 ringtrain train --model resnet20 --data F.h5 --batch 1024 --base-batch 128 --warmup 5ep": (
                "--batch 128 --iterations 2 --warmup 1"
            ),
        },
    ),
    "docs/plan": Plan(
        more={
            "ringtrain time resnet20 -b 128 --json layers-1.json": "-b 8 -n 1 -w 0",
            "mpirun -np 2 ringtrain time resnet20 -b 128 --json layers-2.json": "-b 8 -n 1 -w 0",
            "mpirun -np 2 ringtrain bench-allreduce -b 16K -e 64M --json sweep.json": "-e 256K -n 2 -w 0",
        },
        absent={
            CURVES: "trains for an hour",
            TARGET: "needs hosts, and these curves",
            PROFILE: "tests/mpi profiles scripts",
            f"{PROFILED} -n 1,2,4,8 --weak --price 1.20": "has that profile",
        },
    ),
    "docs/pytorch": Plan(
        absent={"pip install '.[torch]'": "installs from the network"},
        instead={SCRIPT: SCRIPT.replace("python", "python -W ignore")},
    ),
    "docs/reproducibility": Plan(
        more={"mpirun -np 4 ringtrain train --model resnet20 --data cifar10.h5 --reproducible": "--iterations 1"}
    ),
    "docs/runs": Plan(
        before=(
            FASHION,
            *(f"ringtrain train --epochs 1 --out runs/{day}" for day in ("monday", "tuesday")),
            "ringtrain train --iterations 2 --lr 0.004 --out runs/lr-0.004",
            "ringtrain train --iterations 2 --optimizer sgd --lr 0.1 --out runs/sgd",
            "ringtrain train --iterations 2 --out runs/b",
        ),
        instead={
            FILTERED: FILTERED.partition(" | ")[0],
            "ringtrain runs experiments --sort lr": "ringtrain runs runs --sort lr",
            OVER_SEEDS: f"{SEEDS} && {OVER_SEEDS}",
            SPREAD.format(DIVERGES, 5, 100): SPREAD.format("", 2, 2),
            SYNTHETIC: SCALE.format(" --rounds 2 -o scale.png", f"--synthetic {TINY}"),
        },
        more={
            COMPARE: "--iterations 4 --evaluate-every 2",
            "mpirun -np 4 ringtrain train --model lenet --data fashion.h5 --trace --out runs/a": "--epochs 1",
        },
        unlike={
            COMPARE: "one strategy diverges there, on all of Fashion-MNIST",
            SPREAD.format(DIVERGES, 5, 100): "one variant diverges there",
            "ringtrain runs --sort=-test_accuracy": "of longer runs than these",
            SYNTHETIC: "its figures are of one machine",
        },
        absent={
            OF_SCRIPT: "has no train.py: tests/cli/test_cli_scale.py scales a script",
            "pip install 'ringtrain[tensorboard]'": "installs",
            "mpirun -np 4 ringtrain train --model lenet --data fashion.h5 --tensorboard": "needs TensorBoard",
            "tensorboard --logdir runs": "needs TensorBoard",
        },
    ),
    "docs/slow": Plan(
        more={
            "ringtrain time alexnet --batch 4": "--batch 1 --iterations 1 --warm-up 0",
            TIME: "--batch 2 --iterations 1 --warm-up 0",
            "mpirun -np 4 ringtrain tune": "-e 4K -n 3 -w 0 --passes 1",
            "mpirun -np 4 ringtrain train": "--epochs 1",
        }
    ),
    "docs/slurm": Plan(
        before=("touch train.py",),
        instead={SLURM: f"{SLURM} --batch 128 --batch-norm ghost:8"},
        absent={
            f"sbatch -N2 --ntasks-per-node=8 -t 4:00:00 scripts/train.sbatch {ON_CPUS}": ON_SLURM,
            "sbatch -N2 --ntasks-per-node=8 scripts/bench.sbatch": ON_SLURM,
            "export RINGTRAIN_JOB_END=$(($(date +%s) + PBS_WALLTIME))": "needs a PBS",
            'export RINGTRAIN_JOB_END=$(date -d "$(bjobs -noheader -o finish_time "$LSB_JOBID" | tr -d LE)" +%s)': (
                "needs an LSF"
            ),
        },
    ),
    "docs/start-pytorch": Plan(instead={SCRIPT: SCRIPT.replace("python", "python -W ignore")}),
    "docs/strategies": Plan(
        instead={
            HYBRID: f"{SMALL} hybrid",
            f"mpirun -np 6 {PIPELINE} --fc-ranks 2 --accumulate 4": f"{SMALL} pipeline --fc-ranks 2 --accumulate 4",
        },
    ),
}
# Why the other pages with commands have no plan here.
WITHOUT = {
    "CONTRIBUTING": "hosts want namespaces of the kernel: tests/cluster has them",
    "docs/packaging": "needs apptainer, rattler-build and spack",
    "docs/gpu": "needs a GPU: scripts/gpu-acceptance is its test",
    "docs/python": "tests/mpi/test_mpi_communicator.py runs its programs",
}


@pytest.fixture
def furnished(stage) -> Stage:
    """With small data under the names that these pages give to a reader's own."""
    random = np.random.default_rng(0)
    folder = stage.folder
    (folder / "fashion-mnist").symlink_to("DOWNLOADS/fashion-mnist")
    images, labels = random.integers(0, 256, (64, 8, 8, 1), dtype=np.uint8), np.arange(64) % 10
    np.savez(folder / "mine.npz", x=images, y=labels)
    for name, part in (("x", images), ("y", labels), ("xt", images[:8]), ("yt", labels[:8])):
        np.save(folder / f"{name}.npy", part)
    write_arrays(folder / "scans.h5", volumes=images, labels=labels)
    values = images / np.float32(256)
    write_arrays(folder / "fields.h5", x=values, y=values)
    write_arrays(folder / "masks.h5", x=images, y=images[..., 0] // 128)
    write_arrays(folder / "tags.h5", x=images, y=random.integers(0, 2, (64, 4)).astype(np.float32))
    convolution = '{ name = "out", kind = "Conv2D", channels = %d, kernel = 3, pad = 1 }'
    linear = '{ name = "flat", kind = "Flatten" },\n  { name = "out", kind = "Linear", units = 4 }'
    for name, layers in (("field", convolution % 1), ("masks", convolution % 2), ("tags", linear)):
        (folder / f"{name}.toml").write_text(MODEL.format(layers=layers))
    write_flowers(folder, random)
    with tarfile.open(folder / "cifar-10-batches-py.tar.xz", "w:xz") as archive:
        for name, content in cifar10_python().items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stage


MODEL = """input = {{ shape = [8, 8, 1] }}
layers = [
  {layers},
]
recipe = {{ batch = 16, epochs = 1, lr = 0.01 }}
"""


def write_arrays(path, **arrays) -> None:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array


def write_flowers(folder, random) -> None:
    """A folder of images, and the same in two shards."""
    for kind in ("iris", "rose", "tulip"):
        (folder / "flowers" / kind).mkdir(parents=True)
        for number in range(8):
            image = Image.fromarray(random.integers(0, 256, (64, 48, 3), dtype=np.uint8))
            image.save(folder / "flowers" / kind / f"{number}.jpg")
    (folder / "shards").mkdir()
    files = sorted((folder / "flowers").rglob("*.jpg"))
    for number in range(2):
        with tarfile.open(folder / "shards" / f"train-00{number}.tar", "w") as shard:
            for path in files[number::2]:
                shard.add(path, path.relative_to(folder / "flowers"))


@pytest.mark.parametrize("page", daily(PLANS, USE))
def test_every_command_works_and_prints_what_is_shown(page, furnished):
    if page in ("docs/pytorch", "docs/start-pytorch"):
        pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
    play(ROOT / f"{page}.md", furnished, PLANS[page])


EVERY = {**test_docs_commands.PLANS, **{ROOT / f"{page}.md": plan for page, plan in PLANS.items()}}


@pytest.mark.parametrize("document", EVERY, ids=lambda path: path.name)
def test_a_plan_names_commands_that_are_there(document):
    assert EVERY[document].named() <= {step.name for step in steps(document.read_text())}


def test_every_page_with_commands_has_a_plan():
    """A block without a language is of commands. Those of docs/benchmarks are campaigns of hours on machines that they
    name."""
    planned = {*EVERY, *(ROOT / f"{page}.md" for page in WITHOUT)}
    pages = [page for page in DOCUMENTS if page.parent.name != "benchmarks"]
    with_commands = {page for page in pages if not all(block.language for block in blocks(page.read_text()))}
    assert with_commands <= planned
