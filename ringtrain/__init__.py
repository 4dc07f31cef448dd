"""ringtrain: data-parallel training under MPI, with its own gradient exchange.

Importing this package imports neither MPI nor CuPy, nor NumPy: each room loads its libraries when it needs
them, so that ``ringtrain --help`` is instant and works on a login node.
"""

__version__ = "0.2.0"


def __getattr__(name: str):
    if name == "Communicator":
        from ringtrain.api.communicator import Communicator

        return Communicator
    if name == "load":
        from ringtrain.train.model import load

        return load
    raise AttributeError(f"module 'ringtrain' has no attribute {name!r}")
