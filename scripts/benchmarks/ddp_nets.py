"""Nets of `scripts/bench ddp`, in plain PyTorch, each with a batch of a rank and its loss."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F


def conv(channels_in: int, channels: int, kernel: int, stride: int) -> list[nn.Module]:
    """Return a convolution without bias, and its normalisation."""
    return [nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(channels)]


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        second = conv(channels, channels, 3, 1)
        self.body = nn.Sequential(*conv(channels_in, channels, 3, stride), nn.ReLU(inplace=True), *second)
        is_projected = stride != 1 or channels_in != channels
        self.shortcut = nn.Sequential(*(conv(channels_in, channels, 1, stride) if is_projected else ()))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 with the stem for CIFAR: one 3 x 3 convolution, no pooling. 11.2 million weights"""
    layers, channels_in = [*conv(3, 64, 3, 1), nn.ReLU(inplace=True)], 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(channels_in, channels, stride), Block(channels, channels, 1)]
        channels_in = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    """50.4 million weights, in five layers."""
    pairs = pairwise((1024, 4096, 4096, 4096, 3072, 10))
    return nn.Sequential(*[layer for widths in pairs for layer in (nn.Linear(*widths), nn.ReLU())][:-1])


class GPT(nn.Module):
    """A decoder of bytes: 6 layers, 6 heads, width 384. 10.9 million weights"""

    WORDS, WIDTH, LENGTH = 256, 384, 128

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(self.WORDS, self.WIDTH)
        self.places = nn.Parameter(torch.randn(self.LENGTH, self.WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            self.WIDTH, 6, 4 * self.WIDTH, 0.0, F.gelu, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 6, nn.LayerNorm(self.WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(self.WIDTH, self.WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(self.LENGTH))

    def forward(self, x):
        """[N, LENGTH] → logits [N * LENGTH, WORDS]"""
        y = self.layers(self.words(x) + self.places, mask=self.mask, is_causal=True)
        return self.head(y).flatten(0, 1)


NETS = {"resnet18": resnet18, "mlp": mlp, "gpt": GPT}
BATCHES = {"resnet18": 32, "mlp": 32, "gpt": 4}  # of a rank


def batch_of(name: str, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (inputs, labels) of a rank, always the same."""
    numbers, batch = torch.Generator().manual_seed(1 + rank), BATCHES[name]
    if name == "gpt":
        words = torch.randint(0, GPT.WORDS, (batch, GPT.LENGTH + 1), generator=numbers)
        return words[:, :-1], words[:, 1:].flatten()
    shape = (3, 32, 32) if name == "resnet18" else (1024,)
    return torch.randn(batch, *shape, generator=numbers), torch.randint(0, 10, (batch,), generator=numbers)
