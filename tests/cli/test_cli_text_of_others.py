"""What others have written (names of files, classes, models, hosts; logs, settings, arguments) is shown by commands so
that a terminal and a browser act on none of it, and no line of it passes for one of ringtrain's."""

import csv
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click
import h5py
import numpy as np
import pytest
from PIL import Image

from ringtrain.cli.main import ringtrain, run
from ringtrain.data.content import Content, memory_part
from ringtrain.data.file.write import write_dataset
from ringtrain.report.events import Failed, Note
from ringtrain.report.sinks import JsonLines
from tests.report.conftest import ENDED, EPOCH, EXCHANGED, ITERATION, RUN
from tests.tiers import thorough

FORGED = "ringtrain: forged"
NAMES = {
    "worst": f"a\x1b[31m\x1b]0;t\x07\x08\x9b1m\x7f\u202e\u2066\u2028\r\n{FORGED}[bold]",
    "bytes": os.fsdecode(b"a\xff\xfe") + f"\n{FORGED}",
    "escape": "\x1b[31mred\x1b[2J",
    "bell": "\x1b]0;title\x07",
    "control": "\x9b31m\x85\x90",
    "bidi": "\u202aa\u202bb\u202cc\u202dd\u202ee\u2066f\u2067g\u2068h\u2069",
    "newline": f"x\n{FORGED}",
    "return": f"x\r{FORGED}\x0b\x0c",
    "separator": f"x\u2028{FORGED}\u2029",
    "markup": "[red][link=x]a[bold",
}
DAILY = ("worst", "bytes")
# Commands, with the name in their words and in what they read.
LINES = """
train --model {name}.toml --iterations 1 --out {name}-made
train --model {name}-none
train --data {name}.h5 --iterations 1 --out made
train --data {name}-none.h5
train --data {name}-sealed.h5
train --data images-{name} --iterations 1 --out made
train --config {name}-none.toml
train --config {name}.toml
train --resume {name}-none
train --out runs/{name}
train --sync {name}
train --batch {name}
train --{name}
train --init {name}-none.safetensors
train --plugin {name}-none.py
compare runs/{name} runs/told
compare runs/{name} runs/told --csv c.csv --json c.json --plot c.svg
compare runs/{name}-none
compare --sync {name} -- --iterations 1
compare --variant {name}:--batch=3 -- --iterations 1
compare --out runs/{name}/log.jsonl --sync allreduce -- --iterations 1
scale -n 1,2 --launcher {name}{{ranks}} -- train
scale -n 1,2 --out runs/{name} -- train
scale -n 1,2 -- {name}
scale -n 1,2 -- train --model {name}
scale -n {name} -- train
runs
runs --csv -
runs --json -
runs --csv r.csv
runs --sort {name}
runs runs/{name} --log -
runs runs/told --log -
runs runs/{name}-none
report runs/{name}
report runs/told
report runs/{name} runs/told
report runs/told -o p.svg
report runs/{name}-none
report runs/{name} -o {name}.html
evaluate runs/{name}
evaluate runs/{name} --split train --per-class --confusion -o m.json
evaluate runs/{name} --split train --json --per-class
evaluate runs/{name} --split train --data {name}.h5
evaluate runs/{name}-none
evaluate runs/{name} -o {name}.txt
predict runs/{name} {name}.png
predict runs/{name} {name}.png {name}-bad.png
predict runs/{name} {name}.h5 -o p.csv
predict runs/{name} images-{name} -o p.csv
predict runs/{name} {name}.h5 -o {name}.jsonl
predict runs/{name} {name}.h5 -o {name}-made.h5
predict runs/{name} --features {name}
export runs/{name} -o {name}.safetensors
export runs/{name} -o {name}.txt
export runs/{name}-none -o w.safetensors
outcome runs/told
outcome runs/{name}
outcome runs/{name}-none
models show {name}.toml
models show {name}-layers.toml
models show {name}-none
models copy {name}.toml -o made.toml
models copy digits -o {name}-copy.toml
models list {name}
models {name}
time {name}.toml --ops reference -n 3
time {name}-none
plan digits --layers {name}.json --fabric {name}.json
plan {name} --layers {name}.json --fabric {name}.json
schedule show {name}
schedule draw {name}
schedule draw ring -o {name}.txt
schedule cost {name}
schedule verify {name}
schedule list {name}
bench-allreduce --algorithm {name}
bench-allreduce --json {name}-none/b.json
bench-allreduce --tuning {name}.json
tune --explain 4K --tuning {name}.json
tune --algorithm {name}
slurm -J {name}
slurm --sbatch=--comment={name}
slurm -- --model {name}.toml
slurm -- --data {name}-none.h5
slurm run -- {name} {name}
slurm -o {name}.sbatch
doctor --quick --path {name}-none
doctor --quick --json --path {name}-none
data info {name}.h5
data info images-{name}
data info {name}-none.h5
data check {name}-sealed.h5
data info {name}-sealed.h5
data check {name}-bad.png
data make images-{name} -o made.h5
data make {name}-none -o made.h5
data make {name}.h5 -o {name}-none/made.h5
{name}
"""
LINES = LINES.strip().splitlines()
NET = """
summary = {text}
layers = [
  {{ name = {layer}, kind = "Flatten" }},
  {{ name = "out", kind = "Linear", units = 3 }},
]
[input]
shape = [8, 8]
[recipe]
batch = 4
epochs = 1
[[results]]
command = {text}
test_accuracy = 0.5
"""


def leaves(command, words=()):
    if not isinstance(command, click.Group):
        return {words}
    context = click.Context(command)
    return set().union(
        *(leaves(command.get_command(context, name), (*words, name)) for name in command.list_commands(context))
    )


def test_every_command_is_asked():
    assert leaves(ringtrain) <= {tuple(line.split()[:count]) for line in LINES for count in (1, 2)}
    assert len(LINES) * len(DAILY) > 100


@pytest.fixture(scope="module", params=[*DAILY, *thorough(*(name for name in NAMES if name not in DAILY))])
def name(request, tmp_path_factory):
    """The name; in the working folder it is wherever one can be in what the commands read."""
    name, before = NAMES[request.param], Path.cwd()
    os.chdir(tmp_path_factory.mktemp("others"))
    text = name + "\0"
    foreign_file("d.h5", text)
    train = "train --data d.h5 --batch 4 --iterations 1 --ops reference --out made"
    assert run(train.split()) == 0
    Path("runs").mkdir()
    os.rename("made", f"runs/{name}")
    shutil.copy("d.h5", f"{name}.h5")
    sealed_file(f"{name}-sealed.h5", name)
    write_run(Path("runs/told"), text)
    Path(f"{name}.toml").write_text(NET.format(text=json.dumps(stored(name)), layer='"flat"'))
    Path(f"{name}-layers.toml").write_text(NET.format(text=json.dumps(stored(name)), layer=json.dumps(stored(name))))
    Path(f"{name}.json").write_text(json.dumps({"model": text, "header": text, "rows": [text], text: text}))
    for path in (f"{name}.png", f"images-{name}/{name}1/{name}.png", f"images-{name}/{name}2/{name}.png"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)
    for path in (f"{name}-bad.png", f"images-{name}/{name}1/{name}.txt"):
        Path(path).write_text("no image")
    yield name
    os.chdir(before)


@pytest.fixture
def files(name):
    """Return the files that a command has written here; they are gone afterwards."""
    folder = Path.cwd()  # not another one, should a command have changed it
    before = set(folder.iterdir())
    yield lambda ending: [path for path in set(folder.iterdir()) - before if path.suffix == ending]
    for path in set(folder.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def stored(text):
    """The text as HDF5 can hold it."""
    return text.rstrip("\0").encode("utf-8", "replace").decode()


def foreign_file(path, text):
    """A data set of another program, with names of classes."""
    with h5py.File(path, "w") as file:
        file["images"] = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 1), np.uint8)
        file["labels"] = np.arange(8) % 3
        file.attrs["classes"] = np.array([stored(text) + str(k) for k in range(10)], h5py.string_dtype())


def sealed_file(path, text):
    """A data set of `ringtrain data make` whose texts somebody has changed."""
    part = memory_part(np.zeros((2, 8, 8, 1), np.uint8), np.zeros(2, np.int32))
    write_dataset("sealed.h5", Content("d", part, None, ("a", "b"), "made up"))
    with h5py.File("sealed.h5", "r+") as file:
        for key in ("name", "source"):
            file.attrs[key] = stored(text)
    os.rename("sealed.h5", path)


def write_run(folder, text):
    """Make a run folder in which all texts are the given one."""
    (folder / "checkpoints").mkdir(parents=True)
    texts = ("model", "data", "strategy", "device", "dtype", "optimizer", "schedule", "folder", "version")
    more = {"hosts": [text] * 2, "versions": {text: text}, "plugins": {text: text}}
    more |= dict.fromkeys(("mpi", "command", "job"), text)
    start = replace(RUN, **dict.fromkeys(texts, text), **more)
    buckets = tuple(replace(each, what=text, spans=text, algorithm=text) for each in EXCHANGED.buckets)
    ended = replace(ENDED, test_metrics={text: 1.0}, reason=text)
    log = JsonLines(folder / "log.jsonl")
    exchanged, failed = replace(EXCHANGED, buckets=buckets), Failed(error=text, text=text)
    for event in (start, ITERATION, Note(text=text), EPOCH, exchanged, ended, failed):
        log.handle(event)
    log.close()
    keys = ("model", "data", "trace", "sync", "plan", "optimizer")
    options = "\n".join(f"{key} = {json.dumps(text)}" for key in keys)
    (folder / "config.toml").write_text(f"{options}\nplugin = [{json.dumps(text)}]\n")
    became = {"outcome": "failed", "exit_code": 1, "iteration": 2, "iterations": 2, "ranks": 3, "lost": []}
    (folder / "outcome.json").write_text(json.dumps(became | {"text": text}))
    counts = dict.fromkeys(("labelled", "predicted"), 3) | dict.fromkeys(("precision", "recall", "f1", "iou"), 0.5)
    metrics = {"checkpoint": text, "split": text, "iteration": 1, "classes": [{"class": text, **counts}] * 2}
    (folder / "metrics.json").write_text(json.dumps(metrics | {"confusion": [[1, 2], [3, 4]]}))


def acted_on(text):
    """The characters of a text on which a terminal may act."""
    return sorted({c for c in text if not c.isprintable() and c not in "\n\t"})


@pytest.mark.parametrize("line", LINES)
def test_nothing_is_acted_on(name, line, files, capsys):
    words = [word.format(name=name) for word in line.split()]
    code = run(words)
    out, err = capsys.readouterr()
    assert code in (0, 1, 2) and not acted_on(out + err) and not re.search(rf"^\s*{FORGED}", out + err, re.M)
    for path in files(".html") + files(".svg"):
        assert not acted_on(path.read_text())
    tables = [path.read_text() for path in files(".csv")] + [out] * (words[-1] == "-" and words[-2] != "--json")
    for table in tables:
        heads, *rows = csv.reader(io.StringIO(table, newline=""))
        assert rows and {len(row) for row in rows} == {len(heads)}


@pytest.mark.parametrize("line", ["outcome runs/told", "evaluate runs/{name} --split train --per-class", "runs"])
def test_nor_on_a_terminal(name, line):
    """rich's own escapes, for bold and the like, are no one else's."""
    reader, terminal = pty.openpty()
    with open(reader, "rb", buffering=0) as read:
        command = [sys.executable, "-m", "ringtrain", *(word.format(name=name) for word in line.split())]
        done = subprocess.Popen(command, stdout=terminal, stderr=terminal, env=os.environ | {"TERM": "xterm"})
        os.close(terminal)
        said = b""
        with suppress(OSError):  # the other end is closed
            while piece := read.read(1 << 16):
                said += piece
        done.wait()
    said = re.sub(r"\x1b\[[\d;]*m", "", said.decode().replace("\r\n", "\n"))
    assert said and not acted_on(said) and not re.search(rf"^\s*{FORGED}", said, re.M)
