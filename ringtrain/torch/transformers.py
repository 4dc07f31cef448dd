"""The Trainer of Hugging Face, stopped in time."""

import sys
from pathlib import Path

import torch

from ringtrain.errors import Interrupted, naming_packages
from ringtrain.torch.stopping import should_stop
from ringtrain.torch.strategy_ddp import load_state_dict, state_dict, synchronize

with naming_packages():
    from transformers import TrainerCallback


class StopInTimeCallback(TrainerCallback):
    """When a rank is told to stop (:func:`ringtrain.torch.should_stop`), all save a checkpoint after the step, without
    an evaluation before it, and end with exit code 75; ``train(resume_from_checkpoint=…)`` goes on from it. All
    checkpoints have the strategy's state."""

    _stops = False

    def on_train_begin(self, args, state, control, **_) -> None:
        path = _strategy_path(args, state)
        if state.global_step and path.exists():
            load_state_dict(torch.load(path, weights_only=True))

    def on_step_end(self, args, state, control, **_) -> None:
        if not control.should_training_stop and should_stop():
            self._stops, control.should_save, control.should_evaluate = True, True, False
        self.on_epoch_end(args, state, control)

    def on_epoch_end(self, args, state, control, **_) -> None:
        if control.should_save:
            synchronize()

    def on_save(self, args, state, control, **_) -> None:
        strategy, path = state_dict(), _strategy_path(args, state)
        if strategy and state.is_world_process_zero:
            torch.save(strategy, path.with_suffix(".part"))
            path.with_suffix(".part").replace(path)
        if self._stops:
            sys.exit(Interrupted.exit_code)


def _strategy_path(args, state) -> Path:
    return Path(args.output_dir, f"checkpoint-{state.global_step}", "strategy.pt")
