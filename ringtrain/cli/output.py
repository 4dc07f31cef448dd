"""Standard output of commands: a failed write is an OutputError, printed as one line."""

import errno
import io
import os
import sys

from ringtrain.errors import OutputClosed, OutputError


class Output(io.FileIO):
    """Raise the first failed write, and drop later writes: Python writes the rest again when it ends."""

    _failed = False

    def write(self, data) -> int:
        if self._failed:
            return len(data)
        try:
            return super().write(data)
        except OSError as error:
            self._failed = True
            if error.errno == errno.EPIPE:
                raise OutputClosed from None
            raise OutputError(f"standard output cannot be written: {error.strerror}") from None


def prepare_streams() -> None:
    """Replace standard output by one that raises OutputError, and escape characters that a terminal cannot show."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by `>&-`
            setattr(sys, name, io.TextIOWrapper(io.FileIO(os.devnull, "w")))
    old = sys.stdout
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(Output(old.fileno(), "w", closefd=False)),
        encoding=old.encoding,
        errors="backslashreplace",
        line_buffering=bool(old.line_buffering),
    )
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")
