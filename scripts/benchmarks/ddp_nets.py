"""Nets of `scripts/bench ddp`, in plain PyTorch, each with a batch of a rank and its loss."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 with the stem for CIFAR: one 3 x 3 convolution, no pooling. 11.2 million weights"""
    layers, channels_in = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)], 64
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Block(channels_in, channels, stride), Block(channels, channels, 1)]
        channels_in = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    """50.4 million weights, in five layers."""
    return nn.Sequential(
        nn.Linear(1024, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Linear(4096, 3072),
        nn.ReLU(),
        nn.Linear(3072, 10),
    )


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
