"""Numbers for people."""


def size(nbytes: float) -> str:
    """65536 → "64 KiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes:.4g} B"


def rate(bytes_per_s: float) -> str:
    """1.25e10 → "12.5 GB/s"; 1.195e8 → "119.5 MB/s"."""
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s >= 1e9 else f"{bytes_per_s / 1e6:.4g} MB/s"


def micro(seconds: float) -> str:
    """1.234e-05 → "12.3 µs"; 0.01 → "10 ms"."""
    return f"{1e6 * seconds:.3g} µs" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def launches(count: int) -> str:
    """1 → "1 launch"; 5 → "5 launches"."""
    return f"{count} launch" + "es" * (count != 1)
