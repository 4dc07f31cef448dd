"""Decoders that others wrote (of archives, images, arrays) fail on bytes that make no sense in as many ways as they
have lines: whatever it is, it is a fault of the file, and is told as one."""

import warnings
from contextlib import contextmanager

from ringtrain.data import texts
from ringtrain.errors import DataError, RingtrainError


@contextmanager
def decoding(what: str):
    """What a decoder raises becomes a DataError: ``what``, which names the file and says what could not be done, and
    the reason. What it warns of is not shown: it speaks of bytes, and the data is taken or refused as a whole."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except RingtrainError:
        raise
    except MemoryError as error:
        raise DataError(texts.DECODING(what=what, reason=texts.OUT_OF_MEMORY)) from error
    except Exception as error:
        raise DataError(texts.DECODING(what=what, reason=_reason(error))) from error


def _reason(error: Exception) -> str:
    reason = str(error)
    return (
        reason
        if reason and isinstance(error, OSError | ValueError | EOFError)
        else f"{type(error).__name__}: {reason}".rstrip(": ")
    )
