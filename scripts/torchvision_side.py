"""The part of scripts/check-torchvision that runs in torchvision's own environment.

make NAME FOLDER:  random weights in there.safetensors, images in x.npy, their logits in logits.npy
check NAME FOLDER: the logits of own.safetensors in checked.npy
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torchvision
from safetensors.torch import load_file, save_file


def logits(model, x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(torch.from_numpy(x)).numpy()


def make(name: str, folder: Path) -> None:
    torch.manual_seed(7)
    model = getattr(torchvision.models, name)()
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):  # fresh ones would hide a wrong name
            layer.momentum = 1.0
            for values in (layer.weight.data, layer.bias.data):
                values.add_(0.1 * torch.rand_like(values))
    x = np.random.default_rng(7).uniform(-1, 1, (2, 3, 224, 224)).astype(np.float32)
    with torch.no_grad():
        model(torch.from_numpy(x))  # running averages of a trained network: those of its data
    save_file(model.state_dict(), folder / "there.safetensors")
    np.save(folder / "x.npy", x)
    np.save(folder / "logits.npy", logits(model, x))


def check(name: str, folder: Path) -> None:
    model = getattr(torchvision.models, name)()
    model.load_state_dict(load_file(folder / "own.safetensors"), strict=True)
    np.save(folder / "checked.npy", logits(model, np.load(folder / "x.npy")))


if __name__ == "__main__":
    {"make": make, "check": check}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
