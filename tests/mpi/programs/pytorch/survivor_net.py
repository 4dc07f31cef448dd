"""A GPT or a residual network that PyTorch's users could train, in float64 on numbers drawn by rank and step, of whose
ranks some die: it goes on from what it has registered."""

import argparse
import os
import signal
from copy import deepcopy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ringtrain.torch import log_step, register

TOKENS, KINDS, WIDTH, BATCH, SIDE = 24, 64, 32, 2, 16


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(KINDS, WIDTH), nn.Embedding(TOKENS, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, KINDS, bias=False)

    def forward(self, text):
        mask = nn.Transformer.generate_square_subsequent_mask(TOKENS, dtype=torch.float64)
        return self.out(self.blocks(self.tokens(text) + self.places.weight, mask, is_causal=True))


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        layers = [layer for _ in range(2) for layer in (nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width))]
        self.layers = nn.Sequential(*layers[:2], nn.ReLU(), *layers[2:])

    def forward(self, inputs):
        return torch.relu(inputs + self.layers(inputs))


class ResNet(nn.Sequential):
    def __init__(self):
        blocks = Block(16), Block(16), nn.AvgPool2d(4), nn.Flatten()
        super().__init__(nn.Conv2d(3, 16, 3, 1, 1), *blocks, nn.Linear(SIDE * SIDE, KINDS))


NETS = {"gpt": GPT, "resnet": ResNet}


def make(net: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[net]().double()


def optimizer_of(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), 1e-3)


def loss_of(net: str, module: nn.Module, rank: int, step: int) -> torch.Tensor:
    draws = torch.Generator().manual_seed(1000 * step + rank)
    if net == "gpt":
        text = torch.randint(KINDS, (BATCH, TOKENS + 1), generator=draws)
        return cross_entropy(module(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    images = torch.randn(4 * BATCH, 3, SIDE, SIDE, generator=draws, dtype=torch.float64)
    return cross_entropy(module(images), torch.randint(KINDS, (4 * BATCH,), generator=draws))


def kill_at(place: str, net: nn.Module, rank: int, step: int, kills: list[str]) -> None:
    """End this rank if it is to die in this place of a step: forward; backward, in the midst of it; or after it."""
    if f"{rank}:{step}:{place}" not in kills:
        return
    if place == "backward":
        parameters = list(net.parameters())
        parameters[len(parameters) // 2].register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    else:
        os.kill(os.getpid(), signal.SIGKILL)


class Planned:
    """The losses of rank 0 where all ranks train up to a step, and one of them not from there on: in one process."""

    def __init__(self, net: str, ranks: int, steps: int):
        self._net, self._steps = net, steps
        module = make(net)
        self._before, self._losses = [(module, optimizer_of(module))], []  # before each step; of each
        for step in range(steps):
            module, optimizer, loss = self._stepped(*self._before[-1], step, range(ranks))
            self._before.append((module, optimizer))
            self._losses.append(loss)
        self._ranks = ranks

    def losses(self, rank: int, step: int) -> list[float]:
        """Return them by step, of a run that loses this rank when so many steps are done; of -1 none."""
        left, (module, optimizer), losses = set(range(self._ranks)) - {rank}, self._before[step], self._losses[:step]
        for number in range(step, self._steps):
            module, optimizer, loss = self._stepped(module, optimizer, number, sorted(left))
            losses.append(loss)
        return losses

    def _stepped(self, module, optimizer, step: int, ranks):
        module, state = deepcopy(module), optimizer.state_dict()
        optimizer = optimizer_of(module)
        optimizer.load_state_dict(deepcopy(state))
        losses = [loss_of(self._net, module, rank, step) for rank in ranks]
        (sum(losses) / len(losses)).backward()
        optimizer.step()
        module.zero_grad()
        return module, optimizer, losses[0].item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("net", choices=NETS)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--kill", action="append", default=[], metavar="RANK:STEP:PLACE", help="forward|backward|after")
    parser.add_argument("--keep-gradients", action="store_true", help="zero_grad(set_to_none=False)")
    parser.add_argument("--no-register", action="store_true")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    rank, state = dist.get_rank(), {"step": 0}
    module = make(options.net)
    net, optimizer = DistributedDataParallel(module), optimizer_of(module)

    def state_dict():
        return {**state, "module": module.state_dict(), "optimizer": optimizer.state_dict()}

    def load_state_dict(saved):
        state["step"] = saved["step"]
        module.load_state_dict(saved["module"])
        optimizer.load_state_dict(saved["optimizer"])

    if not options.no_register:
        register(state_dict, load_state_dict)
    first = state["step"]
    kills = [] if first else options.kill  # not of a rank that replaces one
    for step in range(first, options.steps):
        state["step"] = step
        optimizer.zero_grad(set_to_none=not options.keep_gradients)
        kill_at("forward", net, rank, step, kills)
        kill_at("backward", net, rank, step, kills)
        loss = loss_of(options.net, net, rank, step)
        loss.backward()
        kill_at("after", net, rank, step, kills)
        optimizer.step()
        log_step(step=step + 1, loss=loss)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
