"""A library's training with ringtrain's callback: stops.py LIBRARY STEPS [FOLDER]. It saves, stops and goes on by the
library's own means; the files are those of saves.py.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

import torch
from saves import hold, sha256
from torch import nn
from torch.nn.functional import cross_entropy

import ringtrain.torch

BATCH, EPOCH = 12, 20  # examples of a step on all ranks; steps
RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Net(nn.Module):
    """As the Trainer wants it: the loss is among its outputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.2), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, x, labels):
        return {"loss": cross_entropy(self.layers(x), labels)}


def examples():
    data = torch.Generator().manual_seed(1)
    pairs = zip(torch.randn(BATCH * EPOCH, 64, generator=data), torch.arange(BATCH * EPOCH) % 10, strict=True)
    return [{"x": x, "labels": label} for x, label in pairs]


def began(step):
    if RANK == 0:
        print(f"from step {step} on {RANKS} ranks", flush=True)


def made(step):
    if RANK == 0:
        with open("steps", "a") as file:
            file.write(f"{step}\n")


def ended(net):
    ringtrain.torch.synchronize()
    if RANK == 0:
        Path("weights").write_text(sha256(net))


def by_lightning(steps, package):
    pl, stop = import_module(package), import_module("ringtrain.torch.lightning").StopInTime("stopped")
    assert type(stop).__mro__[1].__module__.startswith(package)  # each package has a trainer of its own

    class Fit(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Net()

        def on_train_start(self):
            began(self.global_step)

        def training_step(self, batch, index):
            """Data and the generator's state by step: Lightning keeps neither."""
            step = self.global_step
            hold(step)
            torch.manual_seed(step * RANKS + RANK)
            made(step)
            return self.net(torch.randn(BATCH, 64), torch.randint(0, 10, (BATCH,)))["loss"]

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 0.01)

        def on_train_end(self):
            ended(self.net)

    trainer = pl.Trainer(
        strategy="ddp",
        accelerator="cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        max_steps=steps,
        callbacks=[stop],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Fit(), torch.utils.data.DataLoader(range(EPOCH * RANKS)), ckpt_path="last")


def by_transformers(steps):
    transformers = import_module("transformers")
    stop = import_module("ringtrain.torch.transformers").StopInTimeCallback()

    class Watch(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **_):
            began(state.global_step)

        def on_step_begin(self, args, state, control, **_):
            hold(state.global_step)
            made(state.global_step)

    arguments = transformers.TrainingArguments(
        output_dir="out",
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=steps,
        per_device_train_batch_size=BATCH // RANKS,
        save_strategy="epoch",
        eval_strategy="epoch",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(
        Net(), arguments, train_dataset=examples(), eval_dataset=examples()[:BATCH], callbacks=[stop, Watch()]
    )
    last = transformers.trainer_utils.get_last_checkpoint("out") if Path("out").exists() else None
    trainer.train(resume_from_checkpoint=last)
    ended(trainer.model)


def by_accelerate(steps):
    accelerator = import_module("accelerate").Accelerator(cpu=True)
    net = Net()
    net, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), 0.01))
    accelerator.register_for_checkpointing(ringtrain.torch)  # its two functions
    saved = Path("checkpoints")
    first = max((int(path.name) for path in saved.glob("*")), default=0)
    if first:
        accelerator.load_state(f"checkpoints/{first}")
    began(first)
    rows = examples()
    for step in range(first, steps):
        hold(step)
        batch = [rows[(step * BATCH + each) % len(rows)] for each in range(RANK, BATCH, RANKS)]
        optimizer.zero_grad()
        out = net(**{name: torch.stack([row[name] for row in batch]) for name in ("x", "labels")})
        accelerator.backward(out["loss"])
        optimizer.step()
        made(step)
        if ringtrain.torch.should_stop():
            ringtrain.torch.synchronize()
            accelerator.save_state("part")
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                saved.mkdir(exist_ok=True)
                Path("part").replace(saved / str(step + 1))
            sys.exit(75)
    ended(net)


if __name__ == "__main__":
    library, count, *folder = sys.argv[1:]
    os.chdir(*folder or ".")
    torch.set_num_threads(1)
    if library in ("lightning.pytorch", "pytorch_lightning"):
        by_lightning(int(count), library)
    else:
        {"transformers": by_transformers, "accelerate": by_accelerate}[library](int(count))
