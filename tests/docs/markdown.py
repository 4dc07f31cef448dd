"""The commands of a document, and what it says that they print."""

import difflib
import re
from dataclasses import dataclass

ELSE = "..."  # a line of a transcript that stands for any lines
PROGRESS = re.compile(r"^iteration [\d,]+/[\d,]+, ")  # one every 10 s: as many as the machine is slow


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line``: where it begins, counted from 1."""

    language: str
    lines: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Step:
    """A command as it is written, without what explains it, or a file to be made; and the lines that are shown below
    it, which begin at ``line``."""

    command: str
    shown: tuple[str, ...]
    line: int
    file: str = ""

    @property
    def name(self) -> str:
        """The command, or the first line of the file."""
        return self.command.splitlines()[0] if self.file else self.command


def blocks(text: str) -> list[Block]:
    blocks, began, language = [], None, ""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("```"):
            if began is None:
                began, language = number, line[3:].strip()
            else:
                blocks.append(Block(language, tuple(lines[began : number - 1]), began + 1))
                began = None
    assert began is None, f"the block that begins in line {began} has no end"
    return blocks


def steps(text: str) -> list[Step]:
    """In the order of the document."""
    return [step for block in blocks(text) for step in _steps(block)]


def _steps(block: Block) -> list[Step]:
    if block.language:
        named = re.fullmatch(r"# (\S+\.\w+)", block.lines[0])
        return [Step("\n".join(block.lines) + "\n", (), block.line, named[1] if named else f"unnamed.{block.language}")]
    if any(line.startswith("$ ") for line in block.lines):
        return _transcript(block)
    return [Step(command, (), line) for command, line in _joined(block.lines, block.line)]


def _transcript(block: Block) -> list[Step]:
    starts = [number for number, line in enumerate(block.lines) if line.startswith("$ ")]
    assert starts[0] == 0, f"line {block.line}: lines before the first command"
    listed = []
    for start, stop in zip(starts, [*starts[1:], len(block.lines)], strict=True):
        words, used = [block.lines[start][2:]], start + 1
        while words[-1].endswith("\\"):
            words[-1] = words[-1][:-1]
            words.append(block.lines[used].strip())
            used += 1
        listed.append(Step("".join(words), block.lines[used:stop], block.line + used))
    return listed


def _joined(lines, first: int):
    """(command, its line), without comments behind it."""
    for number, line in enumerate(lines, first):
        command = re.sub(r"\s+# .*$", "", line)
        if command:
            yield command, number


def masked(line: str) -> str:
    """Without what differs between machines and runs: figures, processors, hosts, hashes, the best, widths."""
    line = re.sub(r"\b[0-9a-f]{64}\b", "HASH", line.rstrip())
    line = re.sub(r"on CPU (x\d+-\d+-v\d|aarch\d+)", "on CPU FAMILY", line)
    line = re.sub(r"\d+(,\d{3})*(\.\d+)*(e[+-]?\d+)?", "0", line)
    line = re.sub(r"(on 0 nodes?) \([^)]*\)", r"\1 (HOST)", line)
    line = re.sub(r"; best 0% [^;]*$| \*$", "", re.sub(r" \*(?= )", "", line))  # which epoch is the best
    line = re.sub(r"0 kernels? compiled in 0 s, kept for the next run", "kernels loaded from the cache in 0 s", line)
    return re.sub(r"([ ━─])\1+", r"\1", line)


def differences(shown, said) -> str:
    """What a document shows against what the program said; empty where they are the same but for what is masked."""
    shown, said = list(map(masked, shown)), list(map(masked, _first_progress(said)))
    pattern = "".join(r"(?:.*\n)*" if line == ELSE else re.escape(line) + "\n" for line in shown)
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in said)):
        return ""
    return "\n".join(difflib.unified_diff(shown, said, "the document", "the program", lineterm="", n=1))


def _first_progress(lines) -> list[str]:
    """All lines but those of progress after the first."""
    progress = [number for number, line in enumerate(lines) if PROGRESS.match(line)]
    return [line for number, line in enumerate(lines) if number not in progress[1:]]


def anew(shown, said) -> list[str]:
    """What the document should show. Of a transcript with lines left out, those that are there are looked up."""
    if ELSE not in shown:
        return _first_progress(said)
    lines = []
    for line in shown:
        near = difflib.get_close_matches(masked(line), map(masked, said), n=1, cutoff=0.3)
        lines.append(line if line == ELSE or not near else [each for each in said if masked(each) == near[0]][-1])
    return lines
