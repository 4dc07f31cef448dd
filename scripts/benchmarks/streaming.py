"""Training on a set that does not fit into memory: its rate, its memory, and whether its weights are the same.

    streaming.py make FOLDER --gigabytes 20 --shape 32x32x3      x.npy and y.npy of random numbers, by blocks
    streaming.py run FOLDER --ranks 2 --limit-gib 4 -- ARGUMENTS  `ringtrain train --data FOLDER/x.npy,FOLDER/y.npy …`

``run`` puts the ranks into a control group of this much memory (version 1 or 2; root), and prints one line of JSON:
images/s of the last epoch or part of one, the hash of the weights, and the most memory of all ranks together: `private`
is RssAnon, `shared` RssShmem, `peaks` the sum of VmHWM, which counts shared pages once a rank.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from control_groups import memory_group

BLOCK_BYTES = 16 << 20
CLASSES = 10


def make(arguments) -> None:
    """Write the set, and give the pages back to the system, so that a run begins with none of it in memory."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    shape = tuple(map(int, arguments.shape.split("x")))
    row = int(np.prod(shape))
    count = int(arguments.gigabytes * 1e9) // row
    random = np.random.default_rng(1)
    labels = random.integers(0, CLASSES, count)
    np.save(arguments.folder / "y.npy", labels.astype(np.int32))
    with open(arguments.folder / "x.npy", "wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape)}
        np.lib.format.write_array_header_1_0(file, header)
        rows = max(1, BLOCK_BYTES // row)
        for start in range(0, count, rows):
            block = random.bytes((min(start + rows, count) - start) * row)
            file.write(block)
            if start % (64 * rows) == 0:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    print(json.dumps({"examples": count, "bytes": count * row}))


def run(arguments) -> None:
    out = arguments.out
    data = f"{arguments.folder}/x.npy,{arguments.folder}/y.npy"
    command = ["mpirun", "--oversubscribe", "-np", str(arguments.ranks), sys.executable, "-m", "ringtrain", "train"]
    command += ["--data", data, "--out", str(out), *arguments.rest]
    group = memory_group(int(arguments.limit_gib * (1 << 30))) if arguments.limit_gib else None
    try:
        process = subprocess.Popen(
            command, preexec_fn=group.enter if group else None, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        most = {"private": 0, "shared": 0}
        peaks: dict[int, int] = {}
        while process.poll() is None:
            now = [memory for pid in ranks_of(process.pid) if (memory := memory_of(pid, peaks))]
            most["private"] = max(most["private"], sum(private for private, _ in now))
            most["shared"] = max(most["shared"], max((shared for _, shared in now), default=0))
            time.sleep(0.25)
        problem = process.stderr.read().decode()
    finally:
        if group is not None:
            time.sleep(0.5)
            group.remove()
    if process.returncode:
        sys.exit(problem)
    mib = {f"{key}_mib": value >> 20 for key, value in most.items()}
    print(json.dumps({**rates(out), **mib, "peaks_mib": [value >> 20 for value in peaks.values()]}))


def ranks_of(parent: int) -> list[int]:
    """The Python processes below a process."""
    found, above = [], [parent]
    while above:
        children = Path(f"/proc/{above.pop()}/task").glob("*/children")
        for text in children:
            try:
                pids = [int(pid) for pid in text.read_text().split()]
            except OSError:
                continue
            above += pids
            found += pids
    return found


def memory_of(pid: int, peaks: dict[int, int]) -> tuple[int, int] | None:
    """(RssAnon, RssShmem) in bytes of a rank; its VmHWM goes to ``peaks``."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    if not re.search(r"^Name:\s+python", text, re.M):
        return None
    read = {key: int(value) << 10 for key, value in re.findall(r"^(RssAnon|RssShmem|VmHWM):\s+(\d+) kB", text, re.M)}
    peaks[pid] = max(peaks.get(pid, 0), read.get("VmHWM", 0))
    return read.get("RssAnon", 0), read.get("RssShmem", 0)


def rates(out: Path) -> dict:
    """What the log of a run says of its end."""
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    found: dict = {}
    for record in records:
        for key in ("images_per_s", "examples_per_s", "weights", "weights_sha256", "sha256"):
            if key in record:
                found[key] = record[key]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("make")
    one.add_argument("folder", type=Path)
    one.add_argument("--gigabytes", type=float, default=20)
    one.add_argument("--shape", default="32x32x3")
    one.set_defaults(call=make)
    one = commands.add_parser("run")
    one.add_argument("folder", type=Path)
    one.add_argument("--ranks", type=int, default=1)
    one.add_argument("--limit-gib", type=float)
    one.add_argument("--out", type=Path, required=True)
    one.set_defaults(call=run)
    given = sys.argv[1:]
    own = given[: given.index("--")] if "--" in given else given
    arguments = parser.parse_args(own)
    arguments.rest = given[len(own) + 1 :]
    arguments.call(arguments)


if __name__ == "__main__":
    main()
