"""Lightning's Trainer by DDP: it finds its ranks in the environment."""

import json
import os
import sys
import tempfile
import warnings

import lightning
import torch
from torch.nn.functional import mse_loss

warnings.filterwarnings("ignore")


class Fit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, 5))
        self.losses = []

    def training_step(self, batch, index):
        x, y = batch
        loss = mse_loss(self.net(x), y)
        self.log("loss", loss, on_epoch=True, sync_dist=True)  # which means a count of examples, too
        self.losses.append(self.all_gather(loss.detach()).mean().item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def main():
    torch.set_num_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    lightning.seed_everything(0)
    data = torch.Generator().manual_seed(1)
    examples = torch.utils.data.TensorDataset(torch.randn(120, 20, generator=data), torch.randn(120, 5, generator=data))
    model = Fit()
    trainer = lightning.Trainer(
        strategy="ddp",
        devices=ranks,
        accelerator="cpu",
        max_steps=20,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(),
    )
    trainer.fit(model, torch.utils.data.DataLoader(examples, batch_size=2))
    if trainer.global_rank == 0:
        print(json.dumps({"losses": model.losses[:20]}))


main()
