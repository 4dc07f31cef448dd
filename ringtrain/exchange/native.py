"""Which types the MPI's own all-reduce may be given."""

import numpy as np

from ringtrain.errors import RankLostError, TransportError, UsageError
from ringtrain.exchange import allreduce_texts as texts
from ringtrain.exchange.numbers import NumberType
from ringtrain.transport.base import Transport


def check_native(transport: Transport, numbers: NumberType, op: str) -> None:
    """Collective: one element is tried. Raises UsageError, where ``op`` is sum, max or min."""
    # Open MPI has no such type, takes the bits for whole numbers, adds those, and reports success.
    if numbers.name == "bfloat16":
        raise UsageError(texts.NO_BFLOAT16)
    try:
        transport.native_allreduce(np.zeros(1, numbers.storage), op)
    except RankLostError:
        raise
    except (TransportError, KeyError) as error:  # KeyError: mpi4py found no MPI type for the elements
        raise UsageError(texts.NOT_REDUCED(dtype=numbers.name, op=op, error=error)) from error
