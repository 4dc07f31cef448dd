"""PyTorch's side of a comparison: the net of :mod:`peer_net`, and one iteration of it, at PyTorch's best settings."""

import numpy as np
import torch
from own_side import EXAMPLES, LOSS_SCALE
from peer_net import Outputs, PeerNet, gradients, take_weights
from same_work import Work
from side import Side

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FIRST = 3  # iterations before one is captured, as PyTorch's own documentation has it


class Peer:
    """Channels last, fused SGD with the recipe's momentum and decay, cuDNN's own search. Where the loss is scaled the
    factor is fixed, on both sides. ``masks``: of each Dropout, for a comparison."""

    def __init__(self, options, run, batch, masks):
        self._cuda, self._arena, config = options.device == "cuda", run.arena, run.config
        torch.set_num_threads(options.threads)
        allow = options.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allow
        torch.backends.cudnn.benchmark = True
        self._real = torch.float64 if options.precision == "float64" else torch.float32
        self.net = PeerNet(run.graph).to(self._real)
        take_weights(self.net, run.arena, run.worker.ops)
        self.net.to(options.device, memory_format=torch.channels_last)
        self._masks = {name: self._placed(torch.from_numpy(mask)) for name, mask in masks.items()}
        x, labels, _ = run.worker.passes.feed.load(run.worker.space, batch, 0, len(batch.labels))
        images = run.worker.ops.to_host(x).astype(np.float64 if self._real is torch.float64 else np.float32)
        self._x = self._placed(torch.from_numpy(images))
        self._labels = torch.from_numpy(run.worker.ops.to_host(labels)).long().to(options.device)
        self._smoothing = config.label_smoothing
        self._optimizer = torch.optim.SGD(
            self.net.parameters(),
            0.0,
            momentum=config.momentum,
            nesterov=config.optimizer == "nesterov",
            weight_decay=config.weight_decay,
            fused=True,
        )
        self._half = HALVES.get(options.precision)
        scaled = self._half is torch.float16
        self._scaler = torch.amp.GradScaler(options.device, LOSS_SCALE, growth_interval=2**31 - 1, enabled=scaled)

    def _placed(self, tensor):
        """Return N H W C images in torch's order, on the net's device."""
        device = "cuda" if self._cuda else "cpu"
        if tensor.dim() == 4:
            return tensor.permute(0, 3, 1, 2).to(device, self._real, memory_format=torch.channels_last)
        return tensor.to(device, self._real)

    def forward(self, net):
        device = "cuda" if self._cuda else "cpu"
        with torch.autocast(device, dtype=self._half, enabled=self._half is not None):
            logits = net(self._x)
            logits = logits if self._real is torch.float64 else logits.float()
            return torch.nn.functional.cross_entropy(logits, self._labels, label_smoothing=self._smoothing)

    def work(self) -> Work:
        """Return the work of one training pass, with the given masks."""
        self._mask(self._masks)
        self.net.train()
        self._optimizer.zero_grad(set_to_none=True)
        with Outputs(self.net, EXAMPLES) as outputs:
            loss = self.forward(self.net)
        self._scaler.scale(loss).backward()
        factor = self._scaler.get_scale()
        found = {name: each / factor for name, each in gradients(self.net, self._arena).items()}
        self._mask({})
        return Work(outputs, float(loss.detach()), found)

    def _mask(self, masks) -> None:
        for name, _, key in self.net.plan:
            if hasattr(module := self.net.get_submodule(key), "mask"):
                module.mask = masks.get(name)

    def _iterate(self, net) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        self._scaler.scale(self.forward(net)).backward()
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def eager(self) -> Side:
        return Side("eager", lambda: self._iterate(self.net), self._finish())

    def compiled(self) -> Side:
        net = torch.compile(self.net)
        return Side("compile", lambda: self._iterate(net), self._finish())

    def graph(self) -> Side | None:
        """The whole iteration as one CUDA graph; None on the CPU, and where the loss is scaled: what becomes of the
        update is asked for then."""
        if not self._cuda or self._scaler.is_enabled():
            return None
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(FIRST):
                self._iterate(self.net)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        self._optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            self.forward(self.net).backward()
            self._optimizer.step()
        return Side("graph", graph.replay, self._finish())

    def _finish(self):
        return torch.cuda.synchronize if self._cuda else lambda: None
