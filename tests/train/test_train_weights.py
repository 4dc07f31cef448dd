"""--init, --classes and --freeze: from a file or a run, with every strategy, and when the run goes on."""

import json

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner
from small_runs import BATCH_NORM_NET, DROPOUT_NET, everywhere, iterate, run_of, trained

from ringtrain.cli.main import ringtrain
from ringtrain.data.content import Content, memory_part
from ringtrain.data.file.dataset import open_dataset
from ringtrain.data.file.write import write_dataset
from ringtrain.errors import CheckpointError, ConfigError, ModelError, UsageError
from ringtrain.nn import spec
from ringtrain.storage.run_folder.run_folder import RunFolder
from ringtrain.train.load import load, score_of
from ringtrain.weights.export import export, to_torch
from ringtrain.weights.tensor_file import write_tensors
from tests.runs import records, start
from tests.says import says
from tests.weights.networks import random_weights

TWO_FC = DROPOUT_NET.replace(
    '  { name = "fc"',
    '  { name = "fc1", kind = "Linear", units = 24 },\n  { name = "relu2", kind = "ReLU" },\n  { name = "fc"',
)
STRATEGIES = [
    {},
    {"sync": "sharded"},
    {"sync": "averaging", "average_every": 1},
    {"sync": "averaging", "average_every": 1, "outer_momentum": 0.5, "outer_lr": 0.7},
    {"sync": "server"},
    {"sync": "master"},
    {"sync": "delayed"},
    {"sync": "gossip"},
    {"fc": "hybrid"},
    {"fc": "pipeline"},
    {"compress": "powersgd"},
    {"reproducible": True, "ops": "cpu"},
]


def named(strategy):
    return " ".join(map(str, strategy.values())) or "allreduce"


@pytest.fixture
def few(tmp_path):
    """A data set of three of the digits."""
    digits = open_dataset("digits")

    def part(split):
        chosen = split.labels < 3
        return memory_part(split.images[chosen], split.labels[chosen])

    path = tmp_path / "few.h5"
    write_dataset(path, Content("few", part(digits.train), part(digits.test), ("0", "1", "2"), "digits", "CC BY 4.0"))
    return str(path)


@pytest.fixture
def weights(tmp_path):
    """A safetensors file of random weights, and these by name."""
    graph = spec.parse_model(TWO_FC, "net").graph()
    stored = random_weights(graph, seed=21)
    write_tensors(tmp_path / "w.safetensors", to_torch(graph, stored), {})
    return str(tmp_path / "w.safetensors"), stored


def notes(folder):
    return [record["text"] for record in records(folder, "note")]


def newest(folder):
    return RunFolder(folder).latest().checkpoint


# ── fine-tuning ───────────────────────────────────────────────────────────────────────────────────────────────────────
def test_fine_tuning_to_three_classes_from_a_file(train, few, tmp_path, alone):
    train(out="first", iterations=20)
    export("first", tmp_path / "w.safetensors", best=False, force=False)
    train(out="fine", init="w.safetensors", classes=3, data=few, iterations=30, freeze="conv1", batch=20)
    words = "2 of 4 matched; new: fc.weight (96x3, there 10x96), fc.bias (3, there 10)"
    assert says("w.safetensors", words.replace("96x3, there 10x96", "3x96, there 10x96")) in notes(tmp_path / "fine")
    assert says("--freeze", "conv1", 2, 4, "60", "351") in notes(tmp_path / "fine")
    losses = [record["loss"] for record in records(tmp_path / "fine", "iteration")]
    assert np.mean(losses[-4:]) < 0.75 * losses[0]
    before, after = newest(tmp_path / "first").weights, newest(tmp_path / "fine").weights
    assert np.array_equal(before["conv1.weight"], after["conv1.weight"]) and after["fc.bias"].shape == (3,)
    # the run goes on, and its model is in its checkpoint
    train(resume="fine", iterations=32, data=few)
    assert np.array_equal(before["conv1.weight"], newest(tmp_path / "fine").weights["conv1.weight"])
    assert score_of(alone, load(alone, "fine", False, {}, "test")).accuracy > 0.5
    train(resume="fine", iterations=33, data=few, freeze="none")
    assert not np.array_equal(before["conv1.weight"], newest(tmp_path / "fine").weights["conv1.weight"])
    with pytest.raises(ConfigError, match=says("classes")):
        start(alone, None, {"resume": "fine", "classes": 4, "iterations": 34})


def test_a_run_begins_with_the_weights_of_another(train, tmp_path):
    train(out="first", iterations=3)
    train(out="second", init="first", iterations=1, lr=1e-30, momentum=0.0, weight_decay=0.0)
    first, second = newest(tmp_path / "first").weights, newest(tmp_path / "second").weights
    assert all(np.array_equal(first[name], second[name]) for name in first)
    train(out="run", init="first", resume="auto", iterations=3)
    train(out="run", init="first", resume="auto", iterations=5)  # as a job does that starts again
    assert says("--init", "first").matches(notes(tmp_path / "run"))
    tuned = [any("--warmup 0" in note for note in notes(tmp_path / folder)) for folder in ("second", "run")]
    assert tuned == [False, True]  # with --lr, and without
    assert newest(tmp_path / "run").iteration == 5
    with pytest.raises(ConfigError, match=says("--init", "--resume", "first", "run")):
        train(out="run", init="first", resume="run", iterations=6)
    train(resume="run", iterations=6)  # what the first start has said does not count
    for source, error in (("none", CheckpointError), ("none.safetensors", UsageError)):
        with pytest.raises(error, match=source):
            train(out="none", init=source, iterations=1)
    assert not (tmp_path / "none").exists()


# ── strategies ────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("strategy", STRATEGIES, ids=named)
def test_every_strategy_begins_with_the_weights(weights, strategy):
    """And leaves frozen ones as they are, bit by bit, where two ranks average equal numbers."""
    path, stored = weights
    flags = {"init": path, "freeze": "conv1,fc1.bias", "weight_decay": 0.01, "batch": 32, "lr": 0.01, **strategy}

    def begin(transport):
        run, ops = run_of(transport, TWO_FC, **flags)
        part = None if transport.rank in run.roles.parts else ops.to_host(run.arena.weights).copy()
        run.exchange.reducers.close()
        return part, run.arena.spans

    for flat, spans in everywhere(2, begin):
        for span in spans if flat is not None else ():
            assert np.array_equal(flat[span.start : span.start + span.count].reshape(span.shape), stored[span.name])
    ranks = everywhere(2, lambda transport: trained(transport, TWO_FC, 3, **flags))
    after = ranks[0][2].weights
    for name in ("conv1.weight", "conv1.bias", "fc1.bias"):
        assert np.array_equal(after[name], stored[name]), name
    for name in ("fc1.weight", "fc.weight", "fc.bias"):
        assert not np.array_equal(after[name], stored[name]) and np.isfinite(after[name]).all(), name


def test_frozen_layers_before_all_others_are_not_exchanged():
    def sent(**flags):
        def work(transport):
            run, _ = run_of(transport, TWO_FC, algorithm="ring", **flags)
            iterate(run, transport, 0, 2)
            count = sum(span.count for span in run.arena.spans if span.parameter.frozen)
            return run.exchange.reducers.traffic().bytes_sent, count

        return everywhere(2, work)[0]

    (whole, _), (less, frozen) = sent(), sent(freeze="conv1,fc1")
    assert whole - less >= 2 * 4 * frozen > 0


def test_a_frozen_normalisation_keeps_its_averages_and_goes_by_them(alone):
    _, _, before = trained(alone, BATCH_NORM_NET, 3)
    seen = {}
    for freeze in ("conv1,norm1", "none"):
        run, ops = run_of(alone, BATCH_NORM_NET, freeze=freeze, clip_norm=0.1)
        for span in run.arena.spans:
            ops.upload(before.weights[span.name], run.arena.weight(span))
        iterate(run, alone, 0, 4)
        seen[freeze] = {span.name: ops.to_host(run.arena.weight(span)).copy() for span in run.arena.spans}
    for name, values in before.weights.items():
        assert np.array_equal(seen["conv1,norm1"][name], values) == (not name.startswith("fc")), name
        assert not np.array_equal(seen["none"][name], values), name


def test_gradients_through_a_frozen_normalisation_are_those_of_an_affine_map(alone):
    """A network with its frozen normalisation trains the layers before it as one with the same map does."""
    run, _ = run_of(alone, BATCH_NORM_NET, freeze="norm1", dtype="float64", augment=False)
    norm = next(node.layer for node in run.graph.plan if node.name == "norm1")
    random, weights = np.random.default_rng(3), {}
    for name in ("gamma", "beta", "mean", "variance"):
        weights[name] = random.uniform(0.5, 2, 4)
    grads = {name: np.ones(4) for name in weights}
    x, dy = random.standard_normal((3, 2, 2, 4)), random.standard_normal((3, 2, 2, 4))
    ctx = run.worker.passes.ctx
    y, tape = norm.forward(ctx, weights, [x])
    slope = weights["gamma"] / np.sqrt(weights["variance"] + norm.eps)
    np.testing.assert_allclose(y, (x - weights["mean"]) * slope + weights["beta"])
    (dx,) = norm.backward(ctx, weights, grads, dy.copy(), tape, [True])
    np.testing.assert_allclose(dx, dy * slope)
    assert all(not grad.any() for grad in grads.values())


def test_patterns_that_freeze_nothing_or_all(alone):
    for freeze, pattern in (("conv1,cnv*", "cnv*"), ("*", "*")):
        with pytest.raises(ModelError, match=says("--freeze", pattern)):
            run_of(alone, DROPOUT_NET, freeze=freeze)


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def command(*words):
    return CliRunner().invoke(ringtrain, list(words))


def test_export_writes_a_file_once(train, tmp_path):
    train(out="run", iterations=1)
    for name in ("w.safetensors", "w.onnx"):
        assert "iteration 1" in command("export", "run", "-o", name).output
        done = command("export", "run", "-o", name)
        assert isinstance(done.exception, UsageError) and name in str(done.exception)
        assert command("export", "run", "-o", name, "--force", "--best").exit_code == 0
    assert isinstance(command("export", "run", "-o", "w.pth").exception, UsageError)
    assert sorted(path.name for path in tmp_path.glob("w.*")) == ["w.onnx", "w.safetensors"]


def test_an_exported_graph_scores_as_an_evaluation(train, tmp_path, alone):
    """Of values as in the data: the mean image and the deviation are part of the graph."""
    train(out="run", iterations=6)
    assert command("export", "run", "-o", "w.onnx").exit_code == 0
    session = onnxruntime.InferenceSession(tmp_path / "w.onnx")
    test = open_dataset("digits").test
    (logits,) = session.run(None, {"images": np.moveaxis(test.images, -1, 1).astype(np.float32)})
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(test.count), test.labels]
    score = score_of(alone, load(alone, "run", False, {}, "test"))
    assert losses.mean() == pytest.approx(score.loss, abs=1e-4)
    assert (logits.argmax(axis=1) == test.labels).mean() == pytest.approx(score.accuracy, abs=1e-9)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list(open_dataset("digits").classes) and about["iteration"] == "6"


def test_a_copy_of_a_model_has_other_classes_and_its_comments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("models", "copy", "resnet50", "--classes", "3").exit_code == 0
    copied, model = spec.load_model("resnet50.toml"), spec.load_model("resnet50")
    assert copied.graph().shapes["fc"] == (3,)
    assert copied.text == model.text.replace("units = 1000", "units = 3")
    done = command("models", "copy", "resnet50")
    assert isinstance(done.exception, UsageError)
    assert command("models", "copy", "lenet", "-o", "l.toml").exit_code == 0
    assert (tmp_path / "l.toml").read_text() == spec.load_model("lenet").text
