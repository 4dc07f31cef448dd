"""accelerate: it prepares model, optimizer and data, and gathers the losses."""

import json

import torch
from accelerate import Accelerator
from torch.nn.functional import mse_loss


def main():
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    data = torch.Generator().manual_seed(1)
    examples = torch.utils.data.TensorDataset(torch.randn(120, 20, generator=data), torch.randn(120, 5, generator=data))
    net = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 5))
    loader = torch.utils.data.DataLoader(examples, batch_size=2)
    net, optimizer, loader = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), loader)
    losses = []
    for x, y in loader:
        optimizer.zero_grad()
        loss = mse_loss(net(x), y)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
    if accelerator.is_main_process:
        print(json.dumps({"losses": losses[:20], "ranks": accelerator.num_processes}))


main()
