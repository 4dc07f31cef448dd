"""Numbers in human-readable form: sizes, times, rates, fractions and counts."""

RATE = "examples/s"  # of images, rows, windows of text: all that a network takes


def format_bytes(nbytes: float) -> str:
    """Return 65536 as "64 KiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes:.4g} B"


def format_rate(bytes_per_s: float) -> str:
    """Return 1.25e10 as "12.5 GB/s" and 1.195e8 as "119.5 MB/s"."""
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.4g} MB/s"


def format_percent(share: float) -> str:
    """Return 0.125 as "12.5 %"."""
    return f"{100 * share:.1f} %"


def format_seconds(seconds: float) -> str:
    """Return 0.00123 as "1.23 ms" and 1.234e-05 as "12.3 µs"."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Return 1 as "1 rank" and 2000 as "2,000 ranks"; with "launches" for many, 5 as "5 launches"."""
    return f"1 {noun}" if count == 1 else f"{count:,} {many or noun + 's'}"
