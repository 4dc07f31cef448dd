"""Python programs in a process of their own."""

import subprocess
import sys


def in_new_process(program: str, *arguments, **options) -> subprocess.CompletedProcess:
    """What a Python program says. ``options``: of subprocess.run"""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **{"timeout": 60, **options})
