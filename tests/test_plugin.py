"""Plug-ins: the example of docs/plugins.md, what is refused, and what a run says of one."""

import itertools
import re
import sys
import tomllib
from types import ModuleType

import numpy as np
import pytest

from ringtrain import plugin
from ringtrain.allreduce.catalogue import check_algorithm
from ringtrain.cli.main import run as command
from ringtrain.cli.python_script import parse_script_command
from ringtrain.collectives.catalogue import FLAT, HALVES, SCHEDULES, make_schedule
from ringtrain.collectives.proof.verify import verify_schedule
from ringtrain.config.record import OPTIMIZER_NAMES, OptimizerConfig
from ringtrain.config.resolve import resolve
from ringtrain.errors import ConfigError, ModelError, UsageError
from ringtrain.exchange.catalogue import STRATEGIES
from ringtrain.exchange.compatibility import check_options, without_former
from ringtrain.exchange.parts import PARTS
from ringtrain.launch.python_script import ScriptCommand
from ringtrain.memory.workspace import Workspace
from ringtrain.nn.base import Pass
from ringtrain.nn.catalogue import LAYERS
from ringtrain.nn.losses import LOSSES
from ringtrain.nn.spec import parse_model
from ringtrain.ops.catalogue import make_ops
from ringtrain.optim.catalogue import OPTIMIZERS, make_optimizer
from ringtrain.optim.optimizers import SGD
from ringtrain.train.stopping.signals import StopFlag
from ringtrain.transport.loopback import Loopback
from tests.docs.markdown import steps
from tests.docs.playing import ROOT
from tests.loopback.world import LoopbackWorld
from tests.runs import records, start
from tests.test_architecture import ARROWS

FILES = {step.file: step.command for step in steps((ROOT / "docs" / "plugins.md").read_text()) if step.file}
DICTS = (LAYERS, LOSSES, OPTIMIZERS, STRATEGIES, PARTS, FLAT, HALVES, SCHEDULES)
LISTS = (OPTIMIZER_NAMES, plugin.LOADED)


@pytest.fixture
def forget():
    """Takes what plug-ins have added out of the catalogues, as of a new process."""
    before = [dict(each) for each in DICTS], [list(each) for each in LISTS], set(sys.modules)

    def forget():
        for each, kept in zip(DICTS, before[0], strict=True):
            each.clear()
            each.update(kept)
        for each, kept in zip(LISTS, before[1], strict=True):
            each[:] = kept
        for name in set(sys.modules) - before[2]:
            if name.startswith("plugin_"):
                del sys.modules[name]

    yield forget
    forget()


@pytest.fixture
def files(tmp_path, monkeypatch, forget):
    """The example's files, in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ringtrain.train.start.start.has_iterations", lambda log: False)  # curves take a second
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def example(files):
    plugin.load_plugins(["own.py"])


@pytest.fixture
def written(files):
    """Loads a plug-in of this text."""

    def load(text, name="my.py"):
        (files / name).write_text(text)
        plugin.load_plugins([name])

    return load


def test_one_module_has_all_names_and_loads_them_late():
    """A plug-in imports from ``ringtrain.plugin`` alone; the table says which module each name comes from."""
    imported = re.findall(r"(?m)^from (ringtrain\S*) import", "".join(FILES.values()))
    assert set(imported) == {"ringtrain.plugin"}
    names = {}
    exec("from ringtrain.plugin import *", names)
    modules = [name for name in plugin.NAMES if isinstance(names[name], ModuleType)]
    assert names.keys() >= set(plugin.__all__) and modules == ["shapes"]
    rooms = {module.split(".")[0] for module in plugin.MODULES}
    assert rooms <= ARROWS["plugin"]
    with pytest.raises(AttributeError, match=r"module 'ringtrain\.plugin' has no attribute 'Exchagne'"):
        plugin.Exchagne  # noqa: B018


# ── the example ───────────────────────────────────────────────────────────────────────────────────────────────────────
def trained(transport, **flags):
    flags = {"model": "net.toml", "data": "digits", "iterations": 5, "seed": 3, "dtype": "float64", **flags}
    start(transport, None, {"check_collectives": False, **flags}, StopFlag())


def numeric(function, array, step=1e-6):
    """The gradient of a number by an array, by differences."""
    gradient = np.zeros_like(array)
    for at in np.ndindex(array.shape):
        kept = array[at]
        values = []
        for moved in (kept + step, kept - step):
            array[at] = moved
            values.append(function())
        array[at] = kept
        gradient[at] = (values[0] - values[1]) / (2 * step)
    return gradient


def test_the_gradients_of_its_layer_and_of_its_loss_are_right(example):
    random, ops = np.random.default_rng(0), make_ops("reference", "float64")
    layer, ctx = LAYERS["LayerScale"]("scale"), Pass(ops, Workspace(ops))
    x, gamma, weight = random.standard_normal((3, 2, 4)), random.standard_normal(4), random.standard_normal((3, 2, 4))

    def total():
        return float((layer.forward(ctx, {"gamma": gamma}, [x])[0] * weight).sum())

    _, tape = layer.forward(ctx, {"gamma": gamma}, [x])
    grads = {"gamma": np.full(4, np.nan)}
    (dx,) = layer.backward(ctx, {"gamma": gamma}, grads, weight.copy(), tape, [True])
    np.testing.assert_allclose(grads["gamma"], numeric(total, gamma), rtol=1e-6)
    np.testing.assert_allclose(dx, numeric(total, x), rtol=1e-6)
    ctx.accumulate = True
    once = grads["gamma"].copy()
    layer.backward(ctx, {"gamma": gamma}, grads, weight.copy(), tape, [True])
    np.testing.assert_allclose(grads["gamma"], 2 * once, rtol=1e-12)
    loss, ctx = LOSSES["brier"](), Pass(ops, Workspace(ops))
    outputs, labels = random.standard_normal((5, 3)), np.array([0, 2, -1, 1, 1], np.int32)

    def mean():
        totals = np.zeros(3)
        loss.forward(ctx, outputs, labels, totals)
        return totals[0] / 4

    totals = np.zeros(3)
    dx = loss.backward(ctx, outputs, labels, totals, 4.0).copy()
    assert totals[2] == 4 and totals[1] == sum(outputs[i].argmax() == labels[i] for i in (0, 1, 3, 4))
    np.testing.assert_allclose(dx, numeric(mean, outputs), rtol=1e-6, atol=1e-9)


def test_its_schedule_is_proved_and_its_strategy_is_exact(example, files):
    """Layer, loss, schedule and strategy together: the losses of one rank."""
    for size in range(1, 9):
        verify_schedule(make_schedule("chain", size))
    ways = {"one": (1, {}), "chain": (3, {"algorithm": "chain"}), "blocking": (3, {"sync": "blocking"})}
    losses = {}
    for name, (size, flags) in ways.items():
        LoopbackWorld(size).run(lambda t, name=name, flags=flags: trained(t, out=name, **flags))
        losses[name] = [record["loss"] for record in records(files / name, "iteration")]
    assert len(losses["one"]) == 5
    for name in ("chain", "blocking"):
        np.testing.assert_allclose(losses[name], losses["one"], rtol=1e-9)


EVERYONE = """
class Everyone(Blocking):
    \"""Each rank sends its gradients to all others, by messages.\"""

    def bind(self, arena, optimizer):
        super().bind(arena, optimizer)
        size, rank = self._transport.size, self._transport.rank
        self._arrived = {peer: self._transport.allocate(arena.count, arena.grads.dtype) for peer in range(size)}
        del self._arrived[rank]
        self._handles = [
            self._transport.recvs(list(self._arrived.items()), 9),
            self._transport.sends([(peer, arena.grads) for peer in self._arrived], 9),
        ]

    def finish(self, iteration, lr):
        for handle in self._handles:
            handle.start()
        for handle in self._handles:
            handle.wait(60)
        terms = {**self._arrived, self._transport.rank: self._arena.grads.copy()}
        self._arena.grads[...] = sum(terms[rank] for rank in sorted(terms))
        self._arena.grads *= own_options(self._settings.config)["factor"]
        self._update.begin(lr)
        self._update.apply()


own = (pieces, OwnOption("factor", 1.0, "of the sum"), OwnOption("fast", False, "or not"))
register_strategy("everyone", replace(row, make=Everyone, plugin_options=own))
"""


def test_options_and_bytes_of_its_strategy(files):
    (files / "own.py").write_text((files / "own.py").read_text() + EVERYONE)
    plugin.load_plugins(["own.py"])
    flags = {"sync": "everyone", "plugin_option": ["factor=0.5"]}
    LoopbackWorld(3).run(lambda t: trained(t, out="run", **flags))
    LoopbackWorld(3).run(lambda t: trained(t, out="one", plugin_option=["factor=0.5", "factor=1"], sync="everyone"))
    LoopbackWorld(3).run(lambda t: trained(t, out="blocking", sync="blocking"))
    losses = {name: [record["loss"] for record in records(files / name, "iteration")] for name in ("run", "one")}
    assert losses["run"][1:] != losses["one"][1:]
    np.testing.assert_allclose(losses["one"], [r["loss"] for r in records(files / "blocking", "iteration")], rtol=1e-9)
    (sent,) = records(files / "run", "ranks")
    assert sent["bytes_sent"] == [5 * 2 * nbytes for nbytes in sent["gradient_bytes"]]
    assert tomllib.loads((files / "run" / "config.toml").read_text())["plugin_option"] == ["factor=0.5"]
    LoopbackWorld(3).run(lambda t: trained(t, out="run", resume="auto", iterations=6))  # it keeps them
    with pytest.raises(ConfigError, match="--sync allreduce has no options of its own"):
        check_options(resolve(("flags", {**flags, "sync": "allreduce"})))
    assert without_former({**flags, "lr": 1.0}, {"sync": "allreduce"}) == {"sync": "everyone", "lr": 1.0}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("factor=fast", "--plugin-option factor=fast: it wants a number: .*of the sum"),
        ("fast=1", "--plugin-option fast=1: it wants true or false"),
        ("pieces=1.5", "--plugin-option pieces=1.5: it wants a whole number"),
        ("facter=2", "--plugin-option facter=2: .*did you mean 'factor'"),
        ("", "--plugin-option is empty"),
    ],
)
def test_a_wrong_value_of_its_option_is_refused(files, value, message):
    (files / "own.py").write_text((files / "own.py").read_text() + EVERYONE)
    plugin.load_plugins(["own.py"])
    with pytest.raises(ConfigError, match=message):
        check_options(resolve(("flags", {"sync": "everyone", "plugin_option": [value]})))
    with pytest.raises(ConfigError, match='"NAME=VALUE"'):
        resolve(("file", {"plugin_option": "fast=true"}))


def test_the_launcher_of_scripts_takes_it(files):
    command = parse_script_command(["--plugin", "own.py", "--sync", "blocking", "train.py"])
    assert isinstance(command, ScriptCommand) and command.exchange.sync == "blocking"


def test_a_wrong_schedule_does_not_run(files):
    path = files / "own.py"
    path.write_text(path.read_text().replace("add=True", "add=False"))
    plugin.load_plugins(["own.py"])
    with pytest.raises(UsageError, match=r"schedule 'chain' for 3 ranks is wrong: .* contribution 0 times"):
        make_schedule("chain", 3)
    with pytest.raises(UsageError, match="schedule 'chain' for 2 ranks is wrong"):
        LoopbackWorld(2).run(lambda t: trained(t, out="run", algorithm="chain"))
    assert not (files / "run" / "log.jsonl").exists()


def test_a_schedule_that_hangs_is_found(files, capfd):
    """Each rank waits for the next one before it sends."""
    text = (files / "own.py").read_text()
    sends, receives = "yield Step(sends=(Move(rank + 1, 0, 1),))", "yield Step(recvs=(Move(rank + 1, 0, 1),))"
    (files / "own.py").write_text(text.replace(sends, "SENDS").replace(receives, sends).replace("SENDS", receives))
    assert command(["schedule", "verify", "chain", "--ranks", "4", "--plugin", "own.py"]) == 2
    assert "schedule 'chain' for 4 ranks is wrong" in capfd.readouterr().err


def test_halves_are_proved_too(written):
    written(
        "from functools import partial\n"
        "from ringtrain.plugin import make_schedule, register_schedule\n"
        "star = partial(make_schedule, 'star')\n"
        "halves = partial(star, goal='reduce-scatter'), partial(star, goal='all-gather')\n"
        "register_schedule('mine', star, halves)\n"
        "register_schedule('bad', star, halves[::-1])\n"
        "register_schedule('none', lambda size: None)\n"
    )
    assert make_schedule("mine", 4, "reduce-scatter").goal == "reduce-scatter"
    verify_schedule(make_schedule("mine", 4, rounded=True), rounds=True)
    check_algorithm("hierarchical:mine:ring")
    with pytest.raises(UsageError, match="for at most 128 ranks; these are 200"):
        make_schedule("mine", 200)
    with pytest.raises(UsageError, match=r"schedule 'none' for 2 ranks wants a Schedule of 2 ranks, got None"):
        make_schedule("none", 2)


# ── in runs ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_a_run_records_it_and_wants_it_again(example, files, forget):
    trained(Loopback(), out="run")
    plugin.load_plugins(["own.py"])  # read once
    (sha256,) = plugin.facts().values()
    assert records(files / "run", "start")[0]["plugins"] == {"own.py": sha256}
    assert "own.py" not in (files / "run" / "config.toml").read_text()
    forget()
    with pytest.raises(ModelError, match=r"unknown kind 'LayerScale' \(one of your own needs --plugin FILE\.py\)"):
        trained(Loopback(), out="run", resume="auto", iterations=7)


def test_ranks_with_other_files_do_not_begin(example, monkeypatch):
    count = itertools.count()
    monkeypatch.setattr(plugin, "facts", lambda: {"own.py": f"sha of {next(count) % 2}"})
    with pytest.raises(UsageError, match=r"plug-ins.*sha of"):
        LoopbackWorld(2).run(lambda t: trained(t, out="run"))


def test_an_error_of_its_code_is_named_by_file_and_line(files, capfd):
    text = (files / "own.py").read_text().replace("        np.multiply(x", "        x.missing\n        np.multiply(x")
    (files / "own.py").write_text(text)
    line = text[: text.index("x.missing")].count("\n") + 1
    flags = ["--model", "net.toml", "--data", "digits", "--iterations", "2", "--out", "run"]
    assert command(["train", "--plugin", "own.py", *flags]) == 2
    message = capfd.readouterr().err
    assert f"plug-in own.py:{line}: AttributeError" in message and "Traceback" not in message


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────
HEAD = "from ringtrain.plugin import *\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nraise ValueError('no luck')\n", "my.py:2: ValueError: no luck"),
        ("x = 1\ndef f(:\n", "my.py:2: SyntaxError"),
        ("import sys\nsys.exit(0)\n", "my.py:2: SystemExit"),
        ("import nothing_of_this_name\n", "my.py:1: ModuleNotFoundError"),
        (HEAD + "register_layer(int)\n", "my.py:2: register_layer wants a class derived from"),
        (
            HEAD + "class Mine(LAYERS['ReLU']): pass\nregister_layer(Mine)\n",
            "my.py:3: register_layer wants .*dataclass",
        ),
        (
            HEAD + "class Swish(Activation): pass\n",
            "my.py:2: .*Swish.*silu",
        ),
        (HEAD + "register_layer(LAYERS['ReLU'])\n", "my.py:2: layer kind 'ReLU' exists"),
        (HEAD + "register_loss(LOSSES['ce'])\n", "my.py:2: loss 'ce' exists already"),
        (
            HEAD + "class Mine(Loss): name = 'mine'\nregister_loss(Mine)\n",
            "my.py:3: loss 'mine' lacks backward, check, forward, labels_of",
        ),
        (HEAD + "register_loss(3)\n", "my.py:2: register_loss wants"),
        (
            HEAD + "register_strategy('sharded', STRATEGIES['allreduce'])\n",
            "my.py:2: strategy 'sharded' exists already",
        ),
        (HEAD + "register_strategy('mine', print)\n", "my.py:2: register_strategy wants"),
        *((HEAD + f"register_schedule('{name}', print)\n", "exists") for name in ("ring", "auto", "mpi", "canonical")),
        (HEAD + "register_schedule('a:b', print)\n", "wants a name without blanks"),
        (HEAD + "register_schedule('mine', 3)\n", "my.py:2: register_schedule wants a function"),
        (HEAD + "register_optimizer('sgd', print)\n", "my.py:2: register_optimizer wants"),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(written, text, message):
    with pytest.raises(UsageError, match=f"^plug-in .*{message}") as caught:
        written(text)
    assert caught.value.exit_code == 2 and not plugin.LOADED


@pytest.mark.parametrize("path", ["none.py", "."])
def test_a_missing_file_is_refused_before_other_options(files, path, capfd):
    assert command(["train", "--batch", "no number", "--plugin", path]) == 2
    assert capfd.readouterr().err.startswith(f"ringtrain: plug-in {path}: ")


def test_names_of_plugins_are_known_to_options(example, written):
    written(HEAD + "class Mine(OPTIMIZERS['sgd']): pass\nregister_optimizer('mine', Mine)\n")
    check_options(resolve(("flags", {"sync": "blocking", "algorithm": "chain", "optimizer": "mine", "loss": "brier"})))
    assert isinstance(make_optimizer("mine", (), OptimizerConfig()), SGD)
    with pytest.raises(ConfigError, match="--staleness 2 is used by --sync server"):
        check_options(resolve(("flags", {"sync": "blocking", "staleness": 2})))


def test_without_it_each_unknown_name_leads_to_it():
    for flags in ({"sync": "mine"}, {"algorithm": "mine"}, {"optimizer": "mine"}):
        with pytest.raises(UsageError, match=r"--plugin FILE\.py"):
            check_options(resolve(("flags", flags)))
    with pytest.raises(ModelError, match=r"--plugin FILE\.py"):
        parse_model(FILES["net.toml"], "net")
