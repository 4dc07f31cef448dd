"""The tests of the device, each family in a process of its own, several at once: a fault ends all work of its process
on a device, and so its family alone. A line tells of each as it ends. With --tool, under compute-sanitizer.

probe.json in FOLDER, written anew each time: {"sources": digest, "leave_out": [kinds of ways that did not pass],
"families": {name: {"status": passed | failed | errors found | ended by signal N | not done, "files", "seconds",
"passed", "failed", "first": its first error}}}. --failed takes the families that did not pass in a former one.
"""

import argparse
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from files import read_json, sources_digest, write_rows
from processes import NOT_DONE, end, ending

ROOT = Path(__file__).parents[2]
OPS, TRAIN = "tests/ops/test_ops_cuda", "tests/train/test_train"
FAMILIES = {  # in the order of what is to be known first
    "maps of the TMA unit": [f"{OPS}_tensor_maps.py"],
    "wgmma, products": [f"{OPS}_wgmma.py"],
    "wgmma, convolutions": [f"{OPS}_wgmma_convolution.py"],
    "tensor cores, products": [f"{OPS}_products.py"],
    "tensor cores, convolutions": [f"{OPS}_convolution.py"],
    "normalised while read": [f"{OPS}_fused.py"],
    "normalisation": [f"{OPS}_norm.py"],
    "16 bits": [f"{OPS}_half.py"],
    "recordings": [f"{OPS}_order.py", f"{OPS}_trials.py", "tests/ops/test_cuda_runtime.py"],
    "sums, tickets": [f"{OPS}_parts.py", "tests/ops/test_ops_loss.py"],
    "exchange": [f"{OPS}_exchange.py", f"{TRAIN}_cuda_exchange.py"],
    "elementary": [f"{OPS}.py", f"{OPS}_backwards.py", "tests/ops/test_ops_activations.py"],
    "the rest": ["tests/ops/test_ops_compression.py", "tests/ops/test_ops_wire.py", f"{OPS}_kernels.py"],
    "training": [f"{TRAIN}_cuda.py", f"{TRAIN}_devices.py", "tests/nn/test_nn_devices.py"],
}
KINDS = {"maps of the TMA unit": "wgmma", "wgmma, products": "wgmma", "wgmma, convolutions": "wgmma"}
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|error)")
# Of the sanitizer, and of pytest.
ERROR = re.compile(r"^(?:E +|={9} (?!COMPUTE-))(\S.*)$|^((?:ERROR|FAILED) .*)$", re.MULTILINE)
FOUND, PROBE = 9, "probe.json"  # the exit code of the sanitizer's finding


def chosen(options) -> dict[str, tuple[list[str], str]]:
    """Return {name: (files, tool of the sanitizer)}."""
    families = FAMILIES
    if options.failed:
        rows = read_json(options.failed).get("families")
        if rows is None:
            sys.exit("no probe was made on this machine, of these sources: run the stage probe before")
        families = {name: rows[name]["files"] for name in rows if rows[name]["status"] != "passed"}
    if options.families:
        families = {name.strip(): families[name.strip()] for name in options.families.split(";")}
    tools = options.tool or [""]
    return {f"{tool} {name}".strip(): (files, tool) for tool in tools for name, files in families.items()}


def start(name: str, files: list[str], tool: str, folder: Path, maxfail: int):
    """Return (its process, the file of its output, when it began)."""
    path = folder / (re.sub(r"\W+", "-", name) + ".txt")
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", str(FOUND)] if tool else []
    command += [sys.executable, "-m", "pytest", "--tb=short", "-W", "default", "-p", "no:cacheprovider"]
    command += ["--maxfail", str(maxfail), "-m", "device", *files]
    with open(path, "w") as output:
        settings = {"stdout": output, "stderr": subprocess.STDOUT, "cwd": ROOT, "start_new_session": True}
        return subprocess.Popen(command, **settings), path, time.monotonic()


def row_of(code: int | None, text: str) -> dict:
    """Return what is told of a family. ``code``: of pytest; None if its time was over; ``text``: its output."""
    last = text.strip().rpartition("\n")[2]
    status = {0: "passed", FOUND: "errors found"}.get(code) or (ending(code) if (code or -1) < 0 else "failed")
    first = next((a or b for a, b in ERROR.findall(text)), last)[:160] if code != 0 else ""
    return {"status": status, **{what: int(number) for number, what in COUNTS.findall(last)}, "first": first}


def run(
    families: dict[str, tuple[list[str], str]], folder: Path, seconds: float, at_once: int = 8, maxfail: int = 3
) -> dict[str, dict]:
    """Run them for a time. Returns their rows, by name."""
    waiting, running, rows, end_at = list(families), {}, {}, time.monotonic() + seconds

    def take(name: str, code: int | None) -> None:
        process, path, began = running.pop(name)
        end(process, 0)  # and whatever it has started
        tell(name, row_of(code, path.read_text(errors="replace")) | {"seconds": round(time.monotonic() - began, 1)})

    def tell(name: str, row: dict) -> None:
        rows[name] = row | {"files": families[name][0]}
        counts = ", ".join(f"{row[what]} {what}" for what in ("passed", "failed", "skipped", "error") if what in row)
        print(f"{name:28} {row['status']:18} {row.get('seconds', 0):6} s  {counts}  {row['first']}", flush=True)
        kinds = {KINDS[each] for each in rows if each in KINDS and rows[each]["status"] not in ("passed", NOT_DONE)}
        report = {"sources": sources_digest(), "leave_out": sorted(kinds), "families": rows}
        write_rows(folder, report, PROBE)

    try:
        while (waiting or running) and time.monotonic() < end_at:
            while waiting and len(running) < at_once:
                name = waiting.pop(0)
                running[name] = start(name, *families[name], folder, maxfail)
            time.sleep(0.1)
            for name in [each for each in running if running[each][0].poll() is not None]:
                take(name, running[name][0].returncode)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever ends this program has a second for what follows
        codes = {name: process.poll() for name, (process, *_) in running.items()}
        for process, *_ in running.values():
            end(process, 0)
        for name, code in codes.items():
            take(name, code)
        for name in waiting:
            tell(name, row_of(None, ""))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=85)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--maxfail", type=int, default=3, help="failures after which a family ends")
    parser.add_argument("--families", help=f"some of them, with semicolons: {'; '.join(FAMILIES)}")
    parser.add_argument("--failed", type=Path, metavar=PROBE, help="those that did not pass in this one")
    parser.add_argument("--tool", action="append", help="of compute-sanitizer, as memcheck; may be repeated")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends its children, and tells of them
    rows = run(chosen(options), options.folder, options.seconds, options.at_once, options.maxfail)
    return int(any(row["status"] != "passed" for row in rows.values()))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(f"probe: {error.filename} cannot be started: {error.strerror}")
