"""Errors of decoders (of archives, images, arrays) as errors of the file: malformed bytes raise
exceptions of any type."""

import warnings
from contextlib import contextmanager
from pathlib import Path

from ringtrain.data import texts
from ringtrain.errors import DataError, RingtrainError


@contextmanager
def decoding(what: str):
    """Raise any exception of a decoder as a DataError with ``what``, which names the file and the failed step, and the
    reason. Its warnings stay hidden: they concern bytes, and the data is taken or refused as a whole."""
    with warnings.catch_warnings(), decoder_errors(what):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def decoder_errors(what: str):
    """Do as :func:`decoding`, but leave warnings alone: their filters belong to all threads."""
    try:
        yield
    except RingtrainError:
        raise
    except MemoryError as error:
        raise DataError(f"{what}: {texts.OUT_OF_MEMORY}") from error
    except Exception as error:
        known = isinstance(error, OSError | ValueError | EOFError) and str(error)
        raise DataError(f"{what}: {known or f'{type(error).__name__}: {error}'.rstrip(': ')}") from error


@contextmanager
def hdf5_errors(path: Path | str, name: str = ""):
    """Raise HDF5's errors about malformed bytes as DataError; ``name``: of the array that is read."""
    try:
        yield
    except MemoryError as error:
        raise DataError(texts.TOO_LARGE.format(path=path)) from error
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:
        problem = f"{name}: {error}" if name else error
        raise DataError(
            f"{path} is damaged: {problem}; make the file with `ringtrain data make` or copy it again"
        ) from error
