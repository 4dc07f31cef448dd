"""Trains by a library with --exact-order, and writes FOLDER/RUN-RANK.jsonl: a line for each forward pass, the examples
and the loss; at the end rank 0 writes the weights, FOLDER/RUN.json. It goes on from FOLDER's checkpoint, if any.

exact.py LIBRARY FOLDER RUN [name=number]...: workers; accumulate, batches a step; stop, the step after which a rank,
the victim, is killed; every, steps from one checkpoint to the next; own=1, an ExactSampler of the script's own;
labels=1, a loss that the Trainer divides by the labels of all ranks
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ringtrain.torch

warnings.filterwarnings("ignore")
LIBRARY, FOLDER, RUN = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
OPTIONS = {"workers": 0, "accumulate": 1, "stop": 0, "victim": 0, "every": 0, "own": 0, "labels": 0}
OPTIONS |= {name: int(value) for name, value in (each.split("=") for each in sys.argv[4:])}
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
COUNT, EPOCHS, RATE, ACCUMULATE = 37, 2, 0.05, OPTIONS["accumulate"]
CHECKPOINT = FOLDER / "checkpoint.pt"


class Numbers(torch.utils.data.Dataset):
    """Each example has its number."""

    def __init__(self):
        draws = torch.Generator().manual_seed(1)
        self.x = torch.randn(COUNT, 6, generator=draws, dtype=torch.float64)
        self.y = torch.randn(COUNT, 3, generator=draws, dtype=torch.float64)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        labels = {"labels": index} if OPTIONS["labels"] else {}
        return {"index": index, "x": self.x[index], "y": self.y[index], **labels}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
        self.layers = torch.nn.Sequential(*layers).double()

    def forward(self, index, x, y):
        loss = (self.layers(x) - y).square().mean()
        if self.training:
            with (FOLDER / f"{RUN}-{RANK}.jsonl").open("a") as file:
                file.write(json.dumps([index.tolist(), loss.item()]) + "\n")
        return {"loss": loss}


class Divided(Net):
    def forward(self, index, x, y, labels, **more):
        loss = super().forward(index, x, y)["loss"]
        return {"loss": loss * len(labels) / more.get("num_items_in_batch", len(labels))}


def written(step):
    """End the victim after this step; rank 0, and all end."""
    if 0 < OPTIONS["stop"] == step and OPTIONS["victim"] == RANK:
        os.kill(os.getpid(), signal.SIGKILL)


def saved(state):
    if RANK == 0:
        torch.save(state, FOLDER / "part.pt")
        (FOLDER / "part.pt").replace(CHECKPOINT)


def plain(net):
    dist.init_process_group()
    ddp, examples = DistributedDataParallel(net), Numbers()
    if OPTIONS["own"]:
        sampler = ringtrain.torch.ExactSampler(examples, batch=8)
        loader = DataLoader(examples, batch_sampler=sampler, num_workers=OPTIONS["workers"])
    else:
        sampler = DistributedSampler(examples)
        loader = DataLoader(examples, batch_size=3, sampler=sampler, num_workers=OPTIONS["workers"])
    optimizer, first, step = torch.optim.SGD(net.parameters(), RATE, momentum=0.9), 0, 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        first, step = state["epoch"], state["step"]
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        ringtrain.torch.load_state_dict(state["ringtrain"])
    next(iter(loader))  # to look at a batch counts as no step
    for epoch in range(first, EPOCHS):
        sampler.set_epoch(epoch)
        for number, rows in enumerate(loader, 1):
            is_step = number % ACCUMULATE == 0 or number == len(loader)
            ddp.require_backward_grad_sync = is_step
            (ddp(**rows)["loss"] / ACCUMULATE).backward()
            if is_step:
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if OPTIONS["every"] and step % OPTIONS["every"] == 0:
                    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch, "step": step}
                    saved({**state, "ringtrain": ringtrain.torch.state_dict()})
                written(step)


def lightning(net):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net

        def training_step(self, rows, number):
            return self.net(**rows)["loss"]

        def on_train_batch_end(self, *_):
            if OPTIONS["every"] and self.global_step % OPTIONS["every"] == 0:
                self.trainer.save_checkpoint(CHECKPOINT)
            written(self.global_step)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), RATE, momentum=0.9)

    trainer = pl.Trainer(
        strategy="ddp", devices=SIZE, accelerator="cpu", max_epochs=EPOCHS, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=FOLDER,
        accumulate_grad_batches=ACCUMULATE,
    )  # fmt: skip
    loader = DataLoader(Numbers(), batch_size=3, shuffle=True, num_workers=OPTIONS["workers"])
    trainer.fit(Module(), loader, ckpt_path=CHECKPOINT if CHECKPOINT.exists() else None)


class Place:
    """ringtrain's state, for accelerate's checkpoints."""

    state_dict = staticmethod(lambda: {"all": ringtrain.torch.state_dict()})
    load_state_dict = staticmethod(lambda state: ringtrain.torch.load_state_dict(state["all"]))


def accelerate(net):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    loader = DataLoader(Numbers(), batch_size=3, shuffle=True, num_workers=OPTIONS["workers"])
    optimizer = torch.optim.SGD(net.parameters(), RATE, momentum=0.9)
    ddp, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    accelerator.register_for_checkpointing(Place())
    step = 0
    if CHECKPOINT.exists():
        accelerator.load_state(CHECKPOINT)
        step = int((CHECKPOINT / "step").read_text())
    for _ in range(step // len(loader), EPOCHS):
        for rows in loader:
            with accelerator.accumulate(ddp):
                accelerator.backward(ddp(**rows)["loss"])
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                if OPTIONS["every"] and step % OPTIONS["every"] == 0:
                    accelerator.save_state(CHECKPOINT)
                    (CHECKPOINT / "step").write_text(str(step))
                written(step)


def trainer(net):
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    class Stop(TrainerCallback):
        def on_step_begin(self, arguments, state, control, **_):
            written(state.global_step)

    arguments = TrainingArguments(
        output_dir=FOLDER / "trainer", use_cpu=True, ddp_backend="gloo", num_train_epochs=EPOCHS, report_to=[],
        per_device_train_batch_size=3, learning_rate=RATE, lr_scheduler_type="constant", optim="sgd",
        disable_tqdm=True, save_strategy="steps" if OPTIONS["every"] else "no", save_steps=OPTIONS["every"] or 500,
        dataloader_num_workers=OPTIONS["workers"], gradient_accumulation_steps=ACCUMULATE, remove_unused_columns=False,
        max_grad_norm=0.0, logging_strategy="no",
    )  # fmt: skip
    before = get_last_checkpoint(arguments.output_dir) if Path(arguments.output_dir).exists() else None
    Trainer(net, arguments, train_dataset=Numbers(), callbacks=[Stop()]).train(resume_from_checkpoint=before)


def main():
    torch.set_num_threads(1)
    net = Divided() if OPTIONS["labels"] else Net()
    {"plain": plain, "lightning": lightning, "accelerate": accelerate, "trainer": trainer}[LIBRARY](net)
    if RANK == 0:
        weights = torch.cat([each.detach().flatten() for each in net.parameters()])
        (FOLDER / f"{RUN}.json").write_text(json.dumps(weights.tolist()))


main()
