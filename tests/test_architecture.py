"""The rooms know only the rooms below them: the drawing in docs/architecture.md, held to by reading the imports."""

import ast
import os
import re
from functools import cache
from pathlib import Path

import pytest

import ringtrain
from tests.new_process import in_new_process

PACKAGE = Path(ringtrain.__file__).parent
LEAF = {"arrays", "child", "errors", "parsing", "records", "humanize", "template", "splitmix", "config"}
READERS = LEAF | {"storage"}
ARROWS = {
    "arrays": set(),
    "child": set(),
    "errors": {"template"},
    "parsing": set(),
    "records": {"errors", "parsing"},
    "humanize": set(),
    "splitmix": set(),
    "template": set(),
    "show": READERS,
    "config": {"errors", "parsing", "records", "template"},
    "ops": LEAF,
    "memory": LEAF | {"ops"},
    "optim": LEAF | {"memory", "ops"},
    "transport": LEAF,
    "storage": LEAF,
    "data": READERS | {"ops"},
    "report": READERS | {"show"},
    "runs": READERS | {"report", "show"},
    "collectives": LEAF | {"ops", "show", "transport"},
    "nn": LEAF | {"memory", "ops"},
    "monitor": LEAF | {"collectives", "transport"},
    "allreduce": LEAF | {"collectives", "transport", "monitor", "ops"},
    "exchange": LEAF | {"allreduce", "memory", "monitor", "collectives", "transport", "nn", "optim", "ops"},
    "bench": READERS | {"allreduce", "monitor", "collectives", "transport", "memory", "nn", "ops", "optim", "show"},
    "api": LEAF | {"allreduce", "monitor", "collectives", "transport"},
    "plan": LEAF | {"bench", "collectives", "exchange", "memory", "nn", "report", "runs", "show"},
    "launch": LEAF | {"allreduce", "transport", "ops", "bench", "storage"},
    "train": LEAF
    | {"memory", "nn", "ops", "exchange", "allreduce", "monitor", "collectives", "transport"}
    | {"launch", "data", "storage", "report", "optim", "weights", "plugin"},
    "weights": READERS | {"nn", "optim"},
    "cli": {"*"},
    "torch": LEAF
    | {
        "allreduce",
        "api",
        "bench",
        "cli",
        "data",
        "launch",
        "storage",
        "transport",
        "exchange",
        "memory",
        "monitor",
        "ops",
        "optim",
        "report",
        "train",
    },
    # with the rooms of its table of names, which are loaded late: tests/test_plugin.py
    "plugin": LEAF | {"nn", "optim", "exchange", "collectives", "allreduce", "memory", "transport"},
    "__main__": {"cli"},
    "__init__": {"api", "train"},
}
# Within a room, sub-rooms and files from the lowest to the highest: each imports only what stands before it.
ORDER = {
    "allreduce": "dtypes machine wire_formats tuning_table auto tuning_file catalogue",
    "api": "usable memory libraries request plan streaming work progress repeated collective_runs methods communicator",
    "bench": "header layers measure model sweep tune",
    "collectives": "texts schedule topology matching compose symbolic_sums algorithms catalogue execution "
    "inspect proof shared_memory stream",
    "config": "option presets exchange record resolve",
    "data": "texts decoding stored content images split predictions file batches readers image_files inputs",
    "exchange": "parts tags update settings buckets base replica_check owned "
    "compression servers strategies model_parallel catalogue compatibility",
    "launch": "binding printed_metrics reproducible python_script mpirun slurm doctor",
    "monitor": "flight_recorder watchdog diagnosis stack_dump guard hang_detector guarded_transport",
    "memory": "spans workspace arena buckets",
    "nn": "base whole_batch blocks settings shapes graph_checks initial "
    "conv conv_columns layers metrics losses norm pool sequence capture_segments "
    "describe fuse catalogue recompute graph freeze subgraphs spec head",
    "ops": "geometry bfloat16 keys elementary pairs levels precision update normalised base cuda host cpu reference "
    "catalogue",
    "optim": "lr optimizers muon catalogue",
    "report": "events rates trace records sinks tensorboard screen figure comparison plots scaling page",
    "runs": "summary table",
    "plan": "layer_times exchange_times iteration strategies prediction target_times tables plots",
    "show": "output tables figures results",
    "storage": "files hdf5 checkpoint run_folder",
    "torch": "private_names stopping tensors call_order work store shared_buckets apart backend mixed buckets world "
    "torch_optimizer module_arena batch_parts kept_sums engine gradients state exact_order strategy_ddp reproducible "
    "replacements step_profile run_log survival lightning transformers datasets gloo __main__",
    "train": "options step stopping evaluate assembly checkpoints load run predict model start",
    "weights": "layouts names tensor_file matching onnx_layers onnx_model export",
    "transport": "deadline activity services shared_arena buffers native_call traffic fault_tolerance "
    "launch_environment waiting base counted agree loopback cuda_aware device key_value mpi world cuda_probe",
}
CONFINED = {
    "mpi4py": {"transport"},
    "cupy": {"ops/cuda", "transport", "bench"},
    "cuda": {"ops/cuda", "transport", "bench"},
    "ml_dtypes": {"ops"},
    "cudnn": {"ops/cuda/convolution/cudnn.py"},
    "click": {"cli"},
    "torch": {"torch"},
    "lightning": {"torch"},
    "transformers": {"torch"},
    "h5py": {"checkpoint", "data", "hdf5", "storage"},
    "safetensors": {"weights"},
    "onnx": {"weights"},
    "tensorboard": {"report/tensorboard.py"},
}
FILES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted(Path(__file__).parent.rglob("*.py"))
SCRIPTS = Path(__file__).parents[1] / "scripts"
PROGRAMS = [path for path in SCRIPTS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module.count(".") < 2 and node.module.startswith("ringtrain"):  # names of rooms, or of a room
                names.update(f"{node.module}.{alias.name}" for alias in node.names)
            else:
                names.add(node.module)
    return names


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_follow_the_arrows(path):
    importer, allowed = room(path), ARROWS[room(path)]
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "ringtrain" or len(parts) == 1 or parts[1] == "__version__":
            continue
        assert parts[1] == importer or "*" in allowed or parts[1] in allowed, f"{path} imports {name}"


def sub_room(dotted: str) -> str | None:
    """The sub-room or file of a room that a module belongs to; None for the room itself, or a name within a file."""
    parts = dotted.split(".")
    if len(parts) < 3 or parts[0] != "ringtrain":
        return None
    place = PACKAGE / parts[1] / parts[2]
    return parts[2] if place.is_dir() or place.with_suffix(".py").exists() else None


def below(importer: str, name: str, order: list[str]) -> bool:
    """Whether a module of the sub-room ``own`` may import ``name`` of its room."""
    other = sub_room(name)
    return other in (None, importer) or order.index(other) < order.index(importer)


def test_an_exchange_is_made_from_its_own_options():
    """The table of options that go together is of a whole training."""
    knowing = [path.name for path in FILES if room(path) == "exchange" and "ringtrain.config.record" in imports(path)]
    assert knowing == ["compatibility.py"]


def within_rooms(path: Path) -> bool:
    return (room(path) in ORDER and path.name != "__init__.py") or len(path.relative_to(PACKAGE).parts) > 2


@pytest.mark.parametrize(
    "path", [path for path in FILES if within_rooms(path)], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_no_import_within_a_room_runs_back(path):
    parts = path.relative_to(PACKAGE).parts
    importer, order = parts[1].removesuffix(".py"), ORDER[parts[0]].split()
    for name in imports(path):
        if name.startswith(f"ringtrain.{parts[0]}."):
            assert below(importer, name, order), f"{path} imports {name}"


@pytest.mark.parametrize("name", ORDER)
def test_every_sub_room_has_its_place_in_the_order(name):
    parts = {path.relative_to(PACKAGE).parts[1].removesuffix(".py") for path in (PACKAGE / name).rglob("*.py")}
    assert parts - {"__init__"} == set(ORDER[name].split())


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_third_parties_are_confined(path):
    place = str(path.relative_to(PACKAGE))
    for name in imports(path):
        homes = CONFINED.get(name.split(".")[0])
        assert homes is None or place.startswith(tuple(homes)), f"{place} imports {name}"


def test_the_check_itself_says_no(tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text("def f():\n    from ringtrain.train import loop\n")
    assert imports(wrong) == {"ringtrain.train.loop"}
    assert "train" not in ARROWS["ops"]
    order = ORDER["exchange"].split()
    assert below("strategies", "ringtrain.exchange.buckets.reducer", order)
    assert not below("buckets", "ringtrain.exchange.strategies.sharded", order)


LOADED = "heavy = {!r} & set(sys.modules); assert not heavy, heavy\n"
HEAVY = {"mpi4py", "cupy", "numpy", "h5py", "rich"}
HELP = "import sys; from ringtrain.cli.main import run; run(['--help'])\n" + LOADED.format(HEAVY)
PACKAGE_ALONE = "import sys; import ringtrain\n" + LOADED.format(HEAVY | {"click"})
STRATEGIES = (
    "import sys; import ringtrain.exchange.compatibility, ringtrain.exchange.replica_check\n"
    "layers = [name for name in sys.modules if name.startswith(('ringtrain.nn', 'ringtrain.train'))]\n"
    "assert not layers, layers\n"
)
CPU = (
    "import sys, numpy; import ringtrain.ops.cuda, ringtrain.ops.cuda.cupy_runtime\n"
    "from ringtrain.ops.catalogue import make_ops\n"
    "ops = make_ops('cpu'); x = ops.zeros((3,)); ops.add(x, x, x)\n"
) + LOADED.format({"cupy", "cupy_backends", "cuda", "cudnn"})
SCHEDULE = (
    "import sys; from ringtrain.cli.main import run\n"
    "code = run(['schedule', 'verify', 'sliced', '--ranks', '3']); assert code == 0, code\n"
) + LOADED.format({"mpi4py"})
REPORT = (
    "import sys; from ringtrain.report import events, plots, rates, sinks\n"
    "from ringtrain.report.screen import terminal, words\n"
) + LOADED.format({"rich", "matplotlib", "numpy", "h5py"})
COMMUNICATOR = (
    PACKAGE_ALONE
    + "from ringtrain import Communicator\n"
    + LOADED.format({"mpi4py", "cupy", "torch", "jax", "h5py", "click", "rich"})
    + "assert Communicator.__module__ == 'ringtrain.api.communicator'\n"
)


LOADS = {"--help": HELP, "communicator": COMMUNICATOR, "layers": STRATEGIES}
LOADS |= {"cpu": CPU, "schedule": SCHEDULE, "report": REPORT}


@pytest.mark.parametrize("program", LOADS.values(), ids=LOADS)
def test_nothing_heavy_is_loaded_that_is_not_asked_for(program):
    done = in_new_process(program)
    assert done.returncode == 0, done.stderr


def test_the_package_has_no_other_names():
    with pytest.raises(AttributeError, match="module 'ringtrain' has no attribute 'Comunicator'"):
        ringtrain.Comunicator  # noqa: B018


def test_a_command_leaves_blas_one_thread(tmp_path):
    """Unless the environment says more; what counts is the environment when NumPy is first imported."""
    program = (
        "import os, sys\n"
        "class Look:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numpy': print('numpy with', os.environ.get('OPENBLAS_NUM_THREADS'))\n"
        "sys.meta_path.insert(0, Look())\n"
        "from ringtrain.cli.main import run; run(['train', '--config', 'none.toml'])"
    )
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")}
    done = in_new_process(program, cwd=PACKAGE.parent, env=environment)
    assert done.stdout.startswith("numpy with 1\n"), done.stdout + done.stderr


UNCLEAR = {"what", "who", "where", "how", "whether", "whoever"}


def first_word(path: Path) -> str:
    return (ast.get_docstring(tree_of(path)) or "whatever").split()[0].lower()


def test_module_docstrings_begin_with_a_noun_or_a_verb():
    """Never with a clause that has no noun, such as "What a layer is"."""
    assert not [path for path in FILES if first_word(path) in UNCLEAR]


# Parameters of these names are typed by the interface, or by a class that derives from it.
SEAMS = {
    "ops": {"Ops"},
    "transport": {"Transport"},
    "arena": {"Arena"},
    "exchange": {"Exchange"},
    "reduction": {"Reduction"},
}


def families(seams: dict[str, set[str]]) -> dict[str, set[str]]:
    """The interfaces of each seam, with all classes that derive from them."""
    trees = [tree_of(path) for path in FILES]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: {ast.unparse(base) for base in node.bases} for node in classes}
    classes = {seam: set(names) for seam, names in seams.items()}
    for names in classes.values():
        while more := {name for name, parents in bases.items() if parents & names} - names:
            names |= more
    return classes


def untyped(path: Path, allowed: dict[str, set[str]]) -> set[str]:
    """The parameters named as seams that a file does not type by their interfaces."""
    parameters = set()
    for node in ast.walk(tree_of(path)):
        for each in node.args.args + node.args.kwonlyargs if isinstance(node, ast.FunctionDef) else ():
            annotation = ast.unparse(each.annotation).strip("'").split(" | ") if each.annotation else [""]
            if each.arg in allowed and not set(annotation) <= allowed[each.arg] | {"None"}:
                parameters.add(f"{path.relative_to(PACKAGE)}: {node.name}({each.arg})")
    return parameters


def test_parameters_of_the_seams_are_typed_by_their_interfaces():
    allowed = families(SEAMS)
    assert not set().union(*(untyped(path, allowed) for path in FILES))


def test_no_class_name_is_defined_twice_and_no_text_in_a_file():
    trees = [tree_of(path) for path in FILES]
    names = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert not {name for name in names if names.count(name) > 1}
    for path in (path for path in FILES if path.name.endswith("texts.py")):
        assigned = [node for node in tree_of(path).body if isinstance(node, ast.Assign)]
        names = [name.id for each in assigned for name in ast.walk(each.targets[0]) if isinstance(name, ast.Name)]
        assert len(names) == len(set(names)), path


def test_every_room_is_packaged_and_no_other():
    setup = (PACKAGE.parent / "setup.cfg").read_text()
    listed = {line.strip() for line in setup.splitlines() if re.fullmatch(r"    ringtrain[\w.]*", line)}
    rooms = {".".join(path.parent.relative_to(PACKAGE.parent).parts) for path in FILES}
    assert listed == {*rooms, "ringtrain.models"}  # it lies in models/


def test_what_commands_say_goes_through_one_place():
    """There text of others is escaped. What rich prints is of cells, which are escaped one by one."""
    said = re.compile(r"\bclick\.s?echo\(|(?<![.\w])print\(")
    others = {str(path.relative_to(PACKAGE)) for path in FILES if said.search(path.read_text())}
    assert others == {"ops/cpu/compile.py", "show/output.py", "torch/__main__.py", "transport/cuda_probe.py"}


# Lines and statements of Python that a room may have. Whoever takes over has to hold it all: a room that outgrows its
# line gets a larger one, with the reason behind it.
BUDGETS: dict[str, tuple[int, int]] = {
    ".": (885, 525),
    "allreduce": (875, 525),
    "api": (2_600, 1_725),  # with streams of every collective
    "bench": (4_000, 2_500),  # of it 250 are collectives other than the all-reduce
    "cli": (3_525, 2_150),  # of it 350 are `compare` and `scale` of scripts of PyTorch
    "collectives": (4_450, 2_525),
    "config": (1_025, 400),
    "data": (6_150, 4_175),  # with text; of it 350 are arrays and image files as people have them
    "exchange": (8_050, 5_050),  # of it 200 are the six parts and 450 lossy sums
    "launch": (1_275, 775),  # scores in lines of a script, and what fixes its bits
    "memory": (325, 225),
    "monitor": (1_150, 800),
    "nn": (3_275, 2_125),  # of it 100 are pooling along 1 to 3 axes, and class tokens
    "ops": (7_525, 4_650),  # of it 180 are levels of few bits, and 150 what a checkout compiles beside
    "optim": (500, 275),  # of it 90 are Muon
    "plan": (1_525, 1_000),  # with profiles of scripts
    "report": (3_900, 2_375),  # runs without tests
    "runs": (475, 300),
    "show": (625, 400),
    "storage": (1_375, 875),
    "torch": (5_400, 3_750),  # with every strategy for a script, exact order (625), survival (550), its run folder
    "train": (7_100, 4_800),  # of it 320 are the run folder of a script of PyTorch
    "transport": (5_350, 3_475),  # with MPICH by other names
    "weights": (1_000, 625),
}
LARGEST_PACKAGE, LARGEST_TESTS, LARGEST_SCRIPTS = 67_600, 59_500, 8_000  # lines


def lines_of(paths) -> int:
    return sum(path.read_text().count("\n") for path in paths)


@pytest.mark.parametrize("name", BUDGETS)
def test_a_room_keeps_its_budget(name):
    paths = sorted(PACKAGE.glob("*.py") if name == "." else (PACKAGE / name).rglob("*.py"))
    statements = sum(isinstance(node, ast.stmt) for path in paths for node in ast.walk(tree_of(path)))
    assert (lines_of(paths), statements) <= BUDGETS[name] and statements <= BUDGETS[name][1]


def test_every_room_has_a_budget_and_so_have_tests_and_scripts():
    assert BUDGETS.keys() == {room(path) if len(path.relative_to(PACKAGE).parts) > 1 else "." for path in FILES}
    assert lines_of(FILES) <= LARGEST_PACKAGE and lines_of(TESTS) <= LARGEST_TESTS
    assert lines_of(path for path in PROGRAMS if path.suffix not in (".toml", ".sbatch")) <= LARGEST_SCRIPTS


# Names that say nothing of a value.
PRONOUNS = {"found", "given", "told", "made", "here", "there", "own", "held", "of"}


def names_of_values(tree: ast.AST) -> set[str]:
    """The names of variables, parameters and attributes that a file assigns."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return names


def is_python(path: Path) -> bool:
    return path.suffix == ".py" or path.read_bytes().startswith(b"#!/usr/bin/env python")


def test_values_are_named_by_nouns():
    files = [*FILES, *TESTS, *filter(is_python, PROGRAMS)]
    pronouns = {path: names_of_values(tree_of(path)) & (PRONOUNS | {f"_{name}" for name in PRONOUNS}) for path in files}
    assert not {str(path): names for path, names in pronouns.items() if names}
    assert names_of_values(ast.parse("def f(given, *, own=1):\n    self._held = [there for there in own]")) == {
        "given", "own", "_held", "there"
    }  # fmt: skip
