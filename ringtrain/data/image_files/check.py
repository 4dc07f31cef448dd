"""Checks of all that ``--data`` takes, in shares: `ringtrain data check`."""

from contextlib import suppress
from itertools import chain, islice

from ringtrain.data.batches.pictures import View
from ringtrain.data.content import Progress, no_progress
from ringtrain.data.file.check import check_file
from ringtrain.data.file.grammar import AS_STORED, Layout, parse_data
from ringtrain.data.file.source import open_source
from ringtrain.data.image_files.index import alone
from ringtrain.data.image_files.open import accepts, are_shards, open_parts, shards_of
from ringtrain.data.image_files.split import ImageFilesSplit
from ringtrain.errors import DataError

# A share: (place, problem) pairs; notes on what is left out.
Checked = tuple[list[tuple[int, str]], tuple[str, ...]]


def check_share(
    text: str, layout: Layout = AS_STORED, progress: Progress = no_progress, turn: int = 0, turns: int = 1
) -> Checked:
    """Check a share of the files that ``text`` names. Decode every ``turns``-th image, from number ``turn`` on; or read
    every ``turns``-th file of arrays, which have this layout."""
    if accepts(text):
        return _check_images(text, progress, turn, turns)
    problems = []
    for number, (file, name) in islice(enumerate(_files(text)), turn, None, turns):
        each = check_file(name, progress, layout)
        problems += [(number, problem if file in problem else f"{file}: {problem}") for problem in each]
    return problems, ()


def problems_together(text: str, layout: Layout) -> list[str]:
    """Return why files that are good each are not one set."""
    try:
        if not accepts(text):
            open_source(text, layout=layout)
    except DataError as error:
        return [str(error)]
    return []


def _files(text: str) -> list[tuple[str, str]]:
    """(file, its name for ``--data``) of each file of a pattern; ("", ``text``) of any other set."""
    try:
        named = parse_data(text)
    except DataError:  # the check has the reason
        return [("", text)]
    arrays = f":{','.join(filter(None, named.names))}" if named.names else ""
    several = len(named.files) > 1 and not named.labels
    return [(str(file), f"{file}{arrays}") for file in named.files] if several else [("", text)]


def _check_images(path: str, progress: Progress, turn: int, turns: int) -> Checked:
    splits, unopened = _opened(path)
    problems = list(enumerate(unopened))
    every = chain.from_iterable(((split, example) for example in range(split.count)) for split in splits)
    count = sum(split.count for split in splits)
    for number, (split, example) in islice(enumerate(every), turn, None, turns):
        try:
            split.image(example)
        except DataError as error:
            problems.append((len(unopened) + number, str(error)))
        progress("decoding", number + 1, count)
    return problems, () if unopened else splits[0].notes


def _opened(path: str) -> tuple[list[ImageFilesSplit], list[str]]:
    """The parts of a set, or, where it cannot be opened, of each of its shards that can; why the others cannot."""
    problems, shards, splits = list[str](), list[str](), list[ImageFilesSplit]()
    with suppress(DataError):  # the error of the set as a whole says so
        shards = shards_of(path) if are_shards(path) else shards
    for text in [path, *shards]:
        try:
            splits += open_parts(text, View((1, 1)), 3, 1, alone, True)[0].values()
        except DataError as error:
            problems.append(str(error))
        if not problems:  # the set as a whole
            break
    return splits, problems[1:] or problems
