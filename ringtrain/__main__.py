"""The console entry point: ``ringtrain`` and ``python -m ringtrain``."""

import sys


def main() -> None:
    from ringtrain.cli.main import run
    from ringtrain.cli.output import prepare_streams

    prepare_streams()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
