"""`scripts/bench pytorch` with a net that is made wrong in one place. Runs where torch is installed."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from ringtrain.ops.cpu import CpuOps

torch = pytest.importorskip("torch", reason="needs torch: scripts/check-full installs it")
FEW = ("--batch", "6", "--seconds", "0")


class InThisProcess:
    """A side of one rank, whose kernels a test may change."""

    def __init__(self, handlers):
        self._handlers = handlers

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, do, **arguments):
        return [json.loads(json.dumps(self._handlers[do](**arguments)))]


@pytest.fixture
def sides(benchmarks, monkeypatch):
    monkeypatch.setattr(benchmarks("peer_side"), "SEARCH_S", 0)
    return benchmarks("own_side"), benchmarks("peer_side")


@pytest.fixture
def bench(benchmarks, monkeypatch, sides):
    """bench(arguments): what `scripts/bench pytorch` does, in this process."""
    program, (own_side, peer_side) = benchmarks("pytorch"), sides

    def open_peer(options, variant):
        peer_options = SimpleNamespace(**{**vars(options), "variant": variant})
        return InThisProcess(peer_side.handlers(peer_options, 0))

    monkeypatch.setattr(program, "open_own", lambda options: InThisProcess(own_side.handlers(options, 0)))
    monkeypatch.setattr(program, "open_peer", open_peer)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pytorch.py", *arguments, *FEW])
        program.main()

    return run


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("model", ["resnet20", "lenet", "digits"])
def test_nets_that_are_the_same_are_timed(bench, capsys, model, precision):
    bench(model, "--precision", precision)
    same, rates, *tables = capsys.readouterr().out.splitlines()
    assert same.split()[:2] == [model, "same:"] and "worst parameter" in same and "images/s: ringtrain" in rates
    assert any(line.startswith(f"| {model}, 6 | 1 | ") for line in tables)


def test_libraries_that_were_left_out_are_in_the_row(bench, monkeypatch, tmp_path):
    monkeypatch.setattr(CpuOps, "notes", lambda self: ["cuDNN is left out 3×: no engine", "cuBLAS is left out 1×: no"])
    bench("lenet", "--check", "--json", str(tmp_path / "rows.json"))
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["left_out"] == "cuDNN is left out 3×: no engine; cuBLAS is left out 1×: no"


def test_dropout_is_compared_with_the_same_elements_dropped(bench, tmp_path, capsys):
    path = tmp_path / "net.toml"
    path.write_text(
        "input = { shape = [6, 6, 2] }\nlayers = [\n"
        '{ name = "conv", kind = "Conv2D", channels = 4, kernel = 3 },\n{ name = "relu", kind = "ReLU" },\n'
        '{ name = "drop", kind = "Dropout", rate = 0.5 },\n{ name = "flat", kind = "Flatten" },\n'
        '{ name = "out", kind = "Linear", units = 3 },\n]\n'
    )
    bench(str(path), "--precision", "float64", "--check")
    assert "same: " in capsys.readouterr().out


def test_a_wrong_convolution_of_the_peer_is_refused_by_name(bench, benchmarks, monkeypatch):
    peer_net = benchmarks("peer_net")
    forward = peer_net.PeerNet.forward

    def wrong(net, x):
        key = next(key for name, _, key in net.plan if name == "stage2.2.conv1")
        net.get_submodule(key).padding, net.get_submodule(key).dilation = (2, 2), (2, 2)
        return forward(net, x)

    monkeypatch.setattr(peer_net.PeerNet, "forward", wrong)
    with pytest.raises(SystemExit) as refused:
        bench("resnet20")
    assert "resnet20: ringtrain and PyTorch do not compute the same, so nothing is timed" in refused.value.code
    assert "the output of layer 'stage2.2.conv1' is " in refused.value.code


def test_a_kernel_that_does_nothing_is_refused_by_its_layer(bench, monkeypatch):
    """In a branch that the net's own first weights multiply by 0: the kernel of one convolution leaves its output as it
    was."""
    conv2d, called = CpuOps.conv2d, []

    def lazy(self, x, w, b, y, geometry, relu=False):
        called.append(None)
        conv2d(self, x, w, b, y, geometry, relu)
        if y.shape[1:] == (8, 8, 64) and x.shape[1:] == (8, 8, 64):
            y.fill(0.25)

    monkeypatch.setattr(CpuOps, "conv2d", lazy)
    with pytest.raises(SystemExit, match=r"the output of layer 'stage3\.1\.conv2' is "):
        bench("resnet20")
    assert called


@pytest.mark.parametrize(("times", "words"), [(1.05, r"0\.05 apart"), (0.981, r"0\.981 times PyTorch's")])
def test_a_wrong_gradient_is_refused_by_its_parameter(bench, monkeypatch, times, words):
    back = CpuOps.conv2d_back

    def wrong(self, x, w, y, dy, dw, *rest, **named):
        back(self, x, w, y, dy, dw, *rest, **named)
        if dw.shape == (3, 3, 16, 32):
            dw *= np.float32(times)

    monkeypatch.setattr(CpuOps, "conv2d_back", wrong)
    with pytest.raises(SystemExit, match=rf"the gradient of 'stage2\.1\.conv1\.weight' is {words}"):
        bench("resnet20")


def test_noise_in_a_branch_that_begins_switched_off_is_seen(bench, benchmarks, sides, monkeypatch, tmp_path):
    """A thousand times noise on a residual block's weights: the loss of the net's own first weights stays as it is."""
    own_side, peer_side = sides
    take = peer_side.take_weights

    def noisy(net, weights):
        take(net, weights)
        (key,) = (key for name, _, key in net.plan if name == "stage1.2.conv2")
        with torch.no_grad():
            net.get_submodule(key).weight.mul_(0).add_(1000.0).cos_()

    monkeypatch.setattr(peer_side, "take_weights", noisy)
    facts = {"model": "resnet20", "ranks": 1, "batch": 6, "device": "cpu", "precision": "float32", "threads": 1}
    options = SimpleNamespace(**facts, folder=str(tmp_path), variant="channels last, fused SGD")
    with monkeypatch.context() as before:
        before.setattr(own_side, "draw", lambda arena, ops: None)
        handlers = own_side.handlers(options, 0)
        handlers["export"]()
        handlers["work"]()
        peer_side.handlers(options, 0)["work"]("float32")
        load = benchmarks("same_work").load
        losses = [load(tmp_path / f"{side}-0.npz").loss for side in ("own", "peer")]
        assert abs(losses[0] - losses[1]) < 1e-5  # what was compared once
    with pytest.raises(SystemExit, match=r"the output of layer 'stage1\.2\.conv2' is "):
        bench("resnet20")
