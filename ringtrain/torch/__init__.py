"""PyTorch's process groups over the MPI: ``import ringtrain.torch``, then ``init_process_group("ringtrain")``; or, for
a script as it is, ``mpirun -np 4 python -m ringtrain.torch script.py``.
"""

from ringtrain.errors import naming_packages

with naming_packages():
    from ringtrain.torch.replacements import register
    from ringtrain.torch.stopping import should_stop

__all__ = ["should_stop"]

register()
