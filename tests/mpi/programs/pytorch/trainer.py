"""The Trainer of Hugging Face, on a small GPT-2 with random weights."""

import json
import sys
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    data = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 64, (240, 16), generator=data)
    arguments = TrainingArguments(
        output_dir=sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(),
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=20,
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        seed=1,
    )
    examples = [{"input_ids": row, "labels": row} for row in tokens]
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=examples)
    trainer.train()
    if trainer.is_world_process_zero():
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        print(json.dumps({"losses": losses, "ranks": arguments.world_size}))


main()
