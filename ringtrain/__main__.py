"""The console entry point: ``ringtrain`` and ``python -m ringtrain``."""

import os
import sys


def main() -> None:
    from ringtrain.cli.main import run

    for stream in (sys.stdout, sys.stderr):  # a name that the terminal cannot show is no reason to fail
        stream.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read went away; Python would complain once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    main()
