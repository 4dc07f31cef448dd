"""PyTorch's side of a comparison: a rank that trains the net of :mod:`peer_net`. Nothing of ringtrain is imported.

As a program it serves :mod:`side`; with ``first`` as its first argument it runs one iteration from weights and images
of its own, and says so."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from peer_net import PeerNet, gradients, kept_outputs, take_weights
from same_work import EXAMPLES, LOSS_SCALE, Work, save
from side import options_and_rank, proportional_set_size, serve, timed
from torch.nn.parallel import DistributedDataParallel

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FIRST = 3  # iterations before one is captured, as PyTorch's own documentation has it
# Ways that may be the fastest on a CPU: images last or first, and SGD as one kernel or as lists of tensors.
VARIANTS = [f"{order}, {sgd} SGD" for order in ("channels last", "channels first") for sgd in ("fused", "foreach")]
SEARCHED, SEARCH_S = 2, 2.0  # blocks of each, and about the seconds of all blocks of one


class Peer:
    """SGD with the recipe's momentum and decay, cuDNN's own search. Where the loss is scaled the factor is fixed, on
    both sides. Of several ranks by DDP over gloo, at its fastest settings."""

    def __init__(self, options, net: dict, x: np.ndarray, labels: np.ndarray, weights=None, masks=None):
        self._device, self._weights = options.device, weights
        allow = options.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allow
        torch.backends.cudnn.benchmark = True
        self._real = torch.float64 if options.precision == "float64" else torch.float32
        last = options.variant.startswith("channels last")
        self._order = torch.channels_last if last else torch.contiguous_format
        self.net = PeerNet(net["nodes"]).to(self._real)
        if weights is not None:
            take_weights(self.net, weights)
        self.net.to(options.device, memory_format=self._order)
        # Running statistics stay each rank's own, which costs DDP nothing.
        settings = {"forward_sync_buffers": False, "gradient_as_bucket_view": True, "static_graph": True}
        self._model = DistributedDataParallel(self.net, **settings) if options.ranks > 1 else self.net
        self._masks = {name: self._placed(torch.from_numpy(mask)) for name, mask in (masks or {}).items()}
        self._x = self._placed(torch.from_numpy(x))
        self._labels = torch.from_numpy(labels).long().to(options.device)
        self._smoothing = net["label_smoothing"]
        way = "fused" if "fused" in options.variant else "foreach"
        self._optimizer = torch.optim.SGD(self.net.parameters(), 0.0, **net["sgd"], **{way: True})
        self._half = HALVES.get(options.precision)
        scaled = self._half is torch.float16
        self._scaler = torch.amp.GradScaler(options.device, LOSS_SCALE, growth_interval=2**31 - 1, enabled=scaled)

    def _placed(self, tensor):
        """Return N H W C images in torch's order, on the net's device."""
        tensor = tensor.to(self._device, self._real)
        return tensor.permute(0, 3, 1, 2).contiguous(memory_format=self._order) if tensor.dim() == 4 else tensor

    def forward(self, model):
        with torch.autocast(self._device, dtype=self._half, enabled=self._half is not None):
            logits = model(self._x)
            logits = logits if self._real is torch.float64 else logits.float()
            return torch.nn.functional.cross_entropy(logits, self._labels, label_smoothing=self._smoothing)

    def work(self) -> Work:
        """Return the work of one training pass, with the given masks; of several ranks, over all of them."""
        self._mask(self._masks)
        self.net.train()
        self._optimizer.zero_grad(set_to_none=True)
        with kept_outputs(self.net, EXAMPLES) as outputs:
            loss = self.forward(self._model)
        self._scaler.scale(loss).backward()
        factor, loss = self._scaler.get_scale(), loss.detach().clone()
        grads = {name: each / factor for name, each in gradients(self.net, self._weights).items()}
        if self._model is not self.net:
            torch.distributed.all_reduce(loss)
            loss /= torch.distributed.get_world_size()
        self._mask({})
        return Work(outputs, float(loss), grads)

    def _mask(self, masks) -> None:
        for name, _, key in self.net.plan:
            if hasattr(module := self.net.get_submodule(key), "mask"):
                module.mask = masks.get(name)

    def iterate(self, model=None) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(self.forward(self._model if model is None else model)).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def way(self, name: str) -> Callable[[], None] | None:
        """Return an iteration of a way, None where there is no such way."""
        if name == "compile":
            net = torch.compile(self.net)
            return lambda: self.iterate(net)
        return self._graph() if name == "graph" else self.iterate

    def _graph(self) -> Callable[[], None] | None:
        """The whole iteration as one CUDA graph; None on the CPU, and where the loss is scaled: what becomes of the
        update is asked for then."""
        if self._device == "cpu" or self._scaler.is_enabled():
            return None
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(FIRST):
                self.iterate()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.forward(self.net).backward()
            self._optimizer.step()
        return graph.replay


def join(options, rank: int) -> None:
    torch.set_num_threads(options.threads)
    if options.ranks > 1:
        method = f"file://{options.folder}/meet-{options.meeting}"
        torch.distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=options.ranks)


def opened(options, rank: int, **changed) -> Peer:
    """Return the net that ringtrain has written down, under options of which some are changed."""
    folder, options = Path(options.folder), SimpleNamespace(**{**vars(options), **changed})
    net = json.loads((folder / "net.json").read_text())
    weights, masks, batch = (dict(np.load(folder / f"{n}.npz")) for n in ("weights", f"masks-{rank}", f"batch-{rank}"))
    return Peer(options, net, **batch, weights=weights, masks=masks)


def fastest(options) -> str:
    """Return the variant whose best block is the shortest."""
    peers = {name: opened(options, 0, variant=name) for name in VARIANTS}
    first = max(timed(peer.iterate, 1) for peer in peers.values())
    length = max(1, int(SEARCH_S / SEARCHED / first))
    best = dict.fromkeys(peers, float("inf"))
    for _ in range(SEARCHED):
        for name, peer in peers.items():
            best[name] = min(best[name], timed(peer.iterate, length))
    return min(best, key=best.get)


def handlers(options, rank: int) -> dict:
    """Return what :func:`side.serve` does here. ``options``: variant, ranks, folder, and those of :mod:`pytorch`."""
    join(options, rank)
    if options.variant == "search":
        return {"fastest": lambda: fastest(options)}
    peer, ways = opened(options, rank), {}
    finish = torch.cuda.synchronize if options.device == "cuda" else lambda: None

    def write_work(precision: str) -> None:
        worker = peer if precision == options.precision else opened(options, rank, precision=precision)
        save(Path(options.folder) / f"peer-{rank}.npz", worker.work())

    def prepare(way: str) -> bool:
        ways[way] = peer.way(way)
        return ways[way] is not None

    return {
        "work": write_work,
        "prepare": prepare,
        "block": lambda iterations, way: timed(ways[way], iterations, finish),
        "memory": proportional_set_size,
    }


def first(options, rank: int) -> None:
    """Run one iteration, of weights and images of its own."""
    join(options, rank)
    net = json.loads((Path(options.folder) / "net.json").read_text())
    x = np.zeros((options.batch, *net["nodes"][0]["shape"]), np.float32)
    Peer(options, net, x, np.zeros(options.batch, np.int64)).iterate()
    print("iteration 1", flush=True)


if __name__ == "__main__":
    options, rank = options_and_rank()
    if sys.argv[1] == "first":
        first(options, rank)
    else:
        serve(handlers(options, rank))
    with suppress(Exception):
        torch.distributed.destroy_process_group()
