"""Training on a set that does not fit into memory: its rate, its memory, and whether its weights are the same.

    streaming.py make FOLDER --gigabytes 20                      x.npy and y.npy of random numbers, by blocks
    streaming.py run FOLDER --ranks 2 --limit-gib 4 -- ARGUMENTS  `ringtrain train --data FOLDER/x.npy,FOLDER/y.npy …`

``run`` puts the ranks into a control group of this much memory, as root, and prints a line of JSON
(docs/benchmarks/streaming.md): `private` is RssAnon, `shared` RssShmem, `peaks` VmHWM of each rank.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from control_groups import memory_group
from worlds import World, memory_of, records

BLOCK_BYTES = 16 << 20
SHAPE, CLASSES = (32, 32, 3), 10
SAMPLE_S = 0.25


def make(arguments) -> None:
    """Write the set, and give the pages back to the system, so that a run begins with none of it in memory."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    row = int(np.prod(SHAPE))
    count, random = int(arguments.gigabytes * 1e9) // row, np.random.default_rng(1)
    np.save(arguments.folder / "y.npy", random.integers(0, CLASSES, count).astype(np.int32))
    with open(arguments.folder / "x.npy", "wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, *SHAPE)}
        np.lib.format.write_array_header_1_0(file, header)
        rows = max(1, BLOCK_BYTES // row)
        for start in range(0, count, rows):
            file.write(random.bytes((min(start + rows, count) - start) * row))
            if start % (64 * rows) == 0 or start + rows >= count:
                file.flush()
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    print(json.dumps({"examples": count, "bytes": count * row}))


def run(arguments) -> None:
    data, out, peaks = f"{arguments.folder}/x.npy,{arguments.folder}/y.npy", arguments.out, {}
    most = {"private": 0, "shared": 0}
    group = memory_group(int(arguments.limit_gib * (1 << 30))) if arguments.limit_gib else None
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            flags = ["--data", data, "--out", out, *arguments.rest]
            output = Path(folder) / "output.txt"
            world = World(arguments.ranks, flags, output, confine=group.enter if group else None)
            while world.running:
                ranks = {pid: memory for pid in world.pids().values() if (memory := sampled(pid))}
                peaks |= {pid: max(peaks.get(pid, 0), memory["VmHWM"]) for pid, memory in ranks.items()}
                most["private"] = max(most["private"], sum(memory["RssAnon"] for memory in ranks.values()))
                most["shared"] = max([most["shared"], *(memory["RssShmem"] for memory in ranks.values())])
                time.sleep(SAMPLE_S)
            if world.wait():
                sys.exit(output.read_text())
    finally:
        if group is not None:
            time.sleep(2 * SAMPLE_S)
            group.remove()
    mib = {f"{key}_mib": value >> 20 for key, value in most.items()}
    print(json.dumps({**rates(out), **mib, "peaks_mib": [value >> 20 for value in peaks.values()]}))


def sampled(pid: int) -> dict[str, int]:
    """Return the memory of a rank; empty once it has ended."""
    try:
        memory = memory_of(pid)
    except OSError:
        return {}
    return memory if "VmHWM" in memory else {}


def rates(out: Path) -> dict:
    """What the log of a run says of its end."""
    return {key: record[key] for record in records(out) for key in ("images_per_s", "weights_sha256") if key in record}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("make")
    one.add_argument("folder", type=Path)
    one.add_argument("--gigabytes", type=float, default=20)
    one.set_defaults(call=make)
    one = commands.add_parser("run")
    one.add_argument("folder", type=Path)
    one.add_argument("--ranks", type=int, default=1)
    one.add_argument("--limit-gib", type=float)
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(call=run)
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:end])
    arguments.rest = words[end + 1 :]
    arguments.call(arguments)


if __name__ == "__main__":
    main()
