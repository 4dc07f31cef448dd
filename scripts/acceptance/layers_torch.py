"""PyTorch beside the convolutions of :mod:`layers`: the numbers in their arrays, their results, its own times."""

import torch

from ringtrain.ops.cuda.convolution import FORWARD, INPUT_BACK, WEIGHTS_BACK

MASKS = {INPUT_BACK: [True, False, False], WEIGHTS_BACK: [False, True, False]}
REPLAYS, FIRST = 10, 3


class Torch:
    """On the device of ``runtime``; its arrays and tensors share memory. Results are in ringtrain's layouts."""

    def __init__(self, runtime):
        self._runtime = runtime
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    def tensor(self, array):
        """Return a tensor of the array's memory."""
        kind = array.dtype.name
        plain = self._runtime.view(array, "float32" if kind == "float32" else "int16")
        return torch.as_tensor(plain, device="cuda").view(getattr(torch, kind)).view(array.shape)

    def fill(self, plan, arrays) -> None:
        """Fill with standard normal numbers, and weights that keep their size, in as many digits as activations."""
        random = torch.Generator("cuda").manual_seed(0)
        active = self.tensor(arrays["x"]).dtype
        for name in ("x", "dy", "w"):
            tensor = self.tensor(arrays[name])
            scale = plan.depth**-0.5 if name == "w" else 1.0
            tensor.copy_((scale * torch.randn(tensor.shape, generator=random, device="cuda")).to(active))
        torch.cuda.synchronize()

    def results(self, plan, arrays):
        """Yield (pass, its result in float32)."""
        yield from results_of(plan, *self._operands(arrays, torch.float32))

    def apart(self, array, wanted) -> float:
        return float((self.tensor(array).float() - wanted).norm() / wanted.norm())

    def seconds(self, plan, arrays, what: str) -> float:
        """Return PyTorch's seconds, in the arrays' type, by replays of a CUDA graph."""
        torch.backends.cudnn.benchmark = True
        return _replayed(pass_of(plan, what, *self._operands(arrays, self.tensor(arrays["x"]).dtype)))

    def _operands(self, arrays, kind):
        return operands_of({name: self.tensor(arrays[name]).to(kind) for name in TURNS})


TURNS = {"x": (0, 3, 1, 2), "w": (3, 2, 0, 1), "dy": (0, 3, 1, 2)}


def operands_of(tensors: dict) -> list:
    """Return x, w and dy in torch's order of dimensions, channels last."""
    turned = (tensors[name].permute(turn) for name, turn in TURNS.items())
    return [each.contiguous(memory_format=torch.channels_last) for each in turned]


def results_of(plan, x, w, dy):
    """Yield (pass, its result in ringtrain's layout)."""
    yield FORWARD, pass_of(plan, FORWARD, x, w, dy)().permute(0, 2, 3, 1)
    dx, dw, _ = _back(plan, dy, x, w, [True, True, False])
    yield INPUT_BACK, dx.permute(0, 2, 3, 1)
    yield WEIGHTS_BACK, dw.permute(2, 3, 1, 0)


def pass_of(plan, what: str, x, w, dy):
    """Return the function of no arguments that computes a pass."""
    if what == FORWARD:
        moves = [plan.stride] * 2, [plan.pad] * 2, [1, 1]
        return lambda: torch.nn.functional.conv2d(x, w, None, *moves, plan.groups)
    return lambda: _back(plan, dy, x, w, MASKS[what])


def _back(plan, dy, x, w, wanted):
    moves = [plan.stride] * 2, [plan.pad] * 2, [1, 1]
    return torch.ops.aten.convolution_backward(dy, x, w, None, *moves, False, [0, 0], plan.groups, wanted)


def _replayed(run) -> float:
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(FIRST):
            run()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    before.record()
    for _ in range(REPLAYS):
        graph.replay()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3 / REPLAYS
