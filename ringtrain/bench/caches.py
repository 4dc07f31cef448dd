"""How much memory a rank must touch so that nothing of its buffers is left in a cache."""

from pathlib import Path

from ringtrain.bench.sizes import parse_bytes

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_BYTES = 64 << 20  # more than the last-level cache of most processors


def scrub_bytes(folder: Path = CACHES) -> int:
    """Twice the largest cache that the system tells of."""
    sizes = [parse_bytes(file.read_text()) for file in folder.glob("index*/size")]
    return 2 * max(sizes, default=UNKNOWN_BYTES // 2)
