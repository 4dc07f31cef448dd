"""What Linux tells in files."""

from pathlib import Path


def text_of(file: Path) -> str:
    """What a small file says; empty where there is none, or none that may be read."""
    try:
        return file.read_text().strip()
    except OSError:  # also of a network without a cable: reading its speed is refused
        return ""
