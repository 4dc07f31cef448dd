"""PyTorch's process groups over the MPI: ``import ringtrain.torch``, then ``init_process_group("ringtrain")``; or, for
a script as it is, ``mpirun -np 4 python -m ringtrain.torch script.py``.
"""

import sys

from ringtrain.errors import UsageError, naming_packages

try:
    with naming_packages():
        from ringtrain.torch.private_names import check_names

        check_names()
        from ringtrain.torch.datasets import open_dataset
        from ringtrain.torch.exact_order import ExactSampler
        from ringtrain.torch.replacements import install
        from ringtrain.torch.reproducible import parts
        from ringtrain.torch.run_log import log_step
        from ringtrain.torch.stopping import should_stop
        from ringtrain.torch.strategy_ddp import load_state_dict, parallel, state_dict, synchronize
        from ringtrain.torch.survival import register
except UsageError as error:
    if sys.argv[0] != "-m":
        raise
    from ringtrain.cli.world import end_with

    sys.exit(end_with(error))  # python -m ringtrain.torch imports this before the launcher, which would say it

__all__ = [
    "ExactSampler",
    "load_state_dict",
    "log_step",
    "open_dataset",
    "parallel",
    "parts",
    "register",
    "should_stop",
    "state_dict",
    "synchronize",
]

install()
