"""Files are data: nothing in the package turns what it reads into code, and mpi4py's messages are never pickled."""

import ast
from pathlib import Path

import pytest

import ringtrain
from ringtrain import plugin
from ringtrain.config.record import config_fields
from ringtrain.config.resolve import parse_run_file, recipe_layer, resolve
from ringtrain.errors import ConfigError, RingtrainError
from ringtrain.nn.spec import parse_model

PACKAGE = Path(ringtrain.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "copyreg", "code", "yaml"
}  # fmt: skip
ALLOWED = {
    PACKAGE / "plugin.py": ["exec", "compile"],  # the files of --plugin
    PACKAGE / "data" / "readers" / "pickles.py": ["pickle"],  # by lists of instructions and names, none of which runs
    PACKAGE / "torch" / "__main__.py": ["runpy.run_module", "runpy.run_path"],  # the script of its command line
}
RUNS_FILES = {"exec_module", "load_module", "run_path", "run_module", "spec_from_file_location", "source_to_code"}
CALLS = ("os.system", "os.popen", "torch.load", "np.save", "numpy.save")
BUILT_IN = {"eval", "exec", "compile", "__import__"}
# Of mpi4py: what begins with a small letter sends objects, pickled.
PICKLED = {
    "send", "recv", "isend", "irecv", "bsend", "ssend", "sendrecv", "bcast", "gather", "scatter", "allgather",
    "alltoall", "reduce", "allreduce", "scan", "exscan", "ibsend", "issend", "mprobe", "improbe",
}  # fmt: skip


def sins(source: str, over_mpi: bool) -> list[str]:
    tree, calls = ast.parse(source), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            calls += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            calls.append(node.module)
        elif isinstance(node, ast.Call):
            calls += _of_call(node, over_mpi)
    return calls


def _of_call(node: ast.Call, over_mpi: bool) -> list[str]:
    if isinstance(node.func, ast.Name):
        return [node.func.id] if node.func.id in BUILT_IN else []
    if not isinstance(node.func, ast.Attribute):
        return []
    name, said = node.func.attr, ast.unparse(node.func)
    constants = {each.arg: each.value.value for each in node.keywords if isinstance(each.value, ast.Constant)}
    if said in ("np.load", "numpy.load"):
        return [] if constants.get("allow_pickle") is False else ["np.load without allow_pickle=False"]
    if said == "torch.load" and constants.get("weights_only") is True:
        return []
    if flags := [key for key in ("allow_pickle", "shell") if constants.get(key)]:
        return flags
    by_pickle = over_mpi and name in PICKLED and "comm" in said.lower()
    return [said] if by_pickle or said in CALLS or name in RUNS_FILES or name == "extractall" else []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_that_is_read_becomes_code(path):
    assert sins(path.read_text(), path.is_relative_to(PACKAGE / "transport")) == ALLOWED.get(path, [])


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "import shelve as s",
        "eval(text)",
        "exec(text)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "comm.send(x, 1)",
        "self._comm.bcast(x)",
        "subprocess.run(x, shell=True)",
        "os.system(x)",
        "archive.extractall()",
        "loader.exec_module(m)",
        "importlib.util.spec_from_file_location(name, path)",
    ],
)
def test_the_check_itself_says_no(source):
    assert sins(source, over_mpi=True)


def test_what_is_harmless_is_let_through():
    plain = "import json\njson.load(f)\ncomm.Send(x)\nnp.load(p, allow_pickle=False)\nre.compile('x')\nsocket.send(x)"
    assert sins(plain, over_mpi=True) == []


def test_plugins_are_read_for_the_command_line_alone():
    """No other code in the package calls it: not for a model file, a run file or a checkpoint."""
    callers = [path for path in FILES if "load_plugins(" in path.read_text() and path != PACKAGE / "plugin.py"]
    assert callers == [PACKAGE / "cli" / "options.py"]
    assert not {"plugin", "plugins"} & set(config_fields())


@pytest.mark.parametrize("key", ["plugin", "plugins"])
def test_no_file_can_name_a_plugin(key):
    line = f'{key} = ["own.py"]\n'
    with pytest.raises(ConfigError, match=f"unknown key '{key}'|{key}"):
        resolve(("run file", parse_run_file(line, "run file")))
    net = '[input]\nshape = [8, 8, 1]\n[[layers]]\nname = "flat"\nkind = "Flatten"\n'
    for text in (line + net, net + line, net + "[recipe]\n" + line):
        with pytest.raises(RingtrainError, match=key):
            model = parse_model(text, "net")
            recipe_layer("net", model.recipe)
    assert not plugin.LOADED
