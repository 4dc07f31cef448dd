"""DistributedDataParallel that saves its own checkpoint when it is told to stop, and goes on from it. Its arguments are
the number of steps, and the folder for its files, if it is not this one.

In the step that the file ``held`` names it stays until it is told; each rank that has come there leaves a file
``held-by-RANK``. If ``held`` names a rank, too, that rank tells itself. Rank 0 writes ``steps``, a line for each step,
and ``weights``, the sha256 of the last ones.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from ringtrain.torch import should_stop

CHECKPOINT, HELD = Path("checkpoint.pt"), Path("held")
EVERY, BATCH = 20, 60


def save(step, net, optimizer):
    if dist.get_rank() == 0:
        torch.save({"step": step, "net": net.state_dict(), "optimizer": optimizer.state_dict()}, "part.pt")
        Path("part.pt").replace(CHECKPOINT)
    dist.barrier()


def hold(step):
    number, *rank = HELD.read_text().split() if HELD.exists() else ["-1"]
    if step == int(number):
        Path(f"held-by-{dist.get_rank()}").touch()
        if rank == [str(dist.get_rank())]:
            os.kill(os.getpid(), signal.SIGUSR1)
        while not should_stop():
            pass


def sha256(net):
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in net.parameters())).hexdigest()


def main():
    os.chdir(sys.argv[2] if len(sys.argv) > 2 else ".")
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    first = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT)
        first = saved["step"]
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
    if rank == 0:
        print(f"from step {first} on {size} ranks")
    for step in range(first, int(sys.argv[1])):
        data = torch.Generator().manual_seed(step)
        x, y = torch.randn(BATCH, 64, generator=data), torch.randint(0, 10, (BATCH,), generator=data)
        hold(step)
        optimizer.zero_grad()
        cross_entropy(net(x[rank::size]), y[rank::size]).backward()
        optimizer.step()
        if rank == 0:
            with open("steps", "a") as file:
                file.write(f"{step}\n")
        if should_stop():
            save(step + 1, net, optimizer)
            sys.exit(75)
        if (step + 1) % EVERY == 0:
            save(step + 1, net, optimizer)
    if rank == 0:
        Path("weights").write_text(sha256(net))


if __name__ == "__main__":
    main()
