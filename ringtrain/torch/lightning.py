"""Lightning's Trainer, stopped in time: of ``lightning``, or of ``pytorch_lightning`` if a script has loaded that."""

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ringtrain.errors import Interrupted, naming_packages
from ringtrain.torch.stopping import should_stop
from ringtrain.torch.strategy_ddp import load_state_dict, state_dict

PACKAGES = ("lightning.pytorch", "pytorch_lightning")
LOADED = [name for name in PACKAGES if sys.modules.get(name)]
INSTALLED = [name for name in PACKAGES if find_spec(name.partition(".")[0])]

with naming_packages():
    OnExceptionCheckpoint: Any = import_module([*LOADED, *INSTALLED, *PACKAGES][0] + ".callbacks").OnExceptionCheckpoint


class StopInTime(OnExceptionCheckpoint):
    """A callback: when a rank is told to stop (:func:`ringtrain.torch.should_stop`), all save a checkpoint after the
    step and end with exit code 75. ``fit()`` goes on from it, or from the newest ``last.ckpt`` of a ModelCheckpoint;
    at its end the checkpoint is removed. All checkpoints have the strategy's state.

    dirpath, filename: of the checkpoint, which all ranks see; without ``.ckpt``
    """

    best_model_path = ""  # the trainer asks all its checkpoint callbacks for it

    def __init__(self, dirpath, filename: str = "stopped"):
        super().__init__(dirpath, filename)
        self._steps, self._strategy = 0, None

    def state_dict(self) -> dict:
        return {"strategy": state_dict()}

    def load_state_dict(self, saved: dict) -> None:
        self._strategy = saved["strategy"]  # taken when DDP has wrapped the module

    def on_train_start(self, trainer, module) -> None:
        self._steps, strategy, self._strategy = trainer.global_step, self._strategy, None
        if strategy:
            load_state_dict(strategy)

    def on_train_batch_end(self, trainer, *_) -> None:
        before, self._steps = self._steps, trainer.global_step
        if self._steps > before and should_stop():  # not while gradients add up
            trainer.save_checkpoint(self.ckpt_path)
            sys.exit(Interrupted.exit_code)

    def on_exception(self, *_) -> None:
        """Save nothing: it is the exit above, or an error that other ranks may not have."""

    def teardown(self, trainer, module, stage: str) -> None:
        if stage == "fit":
            super().teardown(trainer, module, stage)
