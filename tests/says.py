"""The assertion that a message holds the user's own words: a flag, a path, a value. Its prose is free to change."""

import re
from collections.abc import Iterable


class Words(str):
    """The words that a message must hold, in any order. As a string it is a regular expression, for ``match=`` of
    ``pytest.raises``; it equals every message that it matches."""

    __slots__ = ()

    def matches(self, text: str | Iterable[str]) -> bool:
        """Return whether the text, or one of several, holds the words."""
        texts = [text] if isinstance(text, str) else text
        return any(re.search(self, each) for each in texts)

    def lines(self, text: str) -> int:
        """Return how many lines of the text hold the words."""
        return sum(map(self.matches, text.splitlines()))

    def __add__(self, other: "Words") -> "Words":
        return says(self, other)

    def __eq__(self, other) -> bool:
        return isinstance(other, str) and (str(self) == str(other) or self.matches(other))

    def __ne__(self, other) -> bool:
        return not self == other

    __hash__ = str.__hash__


def says(*words) -> Words:
    """Return what matches a message with all these words, each of them whole: 1 is no part of 10. A whole number may
    have commas in the message."""
    return Words("".join(rf"(?=[\s\S]*{_whole(word)})" for word in words) + r"[\s\S]*")


def _whole(word) -> str:
    """Return a regular expression for a word between others; of Words, for theirs."""
    if isinstance(word, Words):
        return word
    if isinstance(word, int) and word >= 1000:
        return rf"(?<!\w)({word}|{word:,})(?!\w)"
    word = str(word)
    before = r"(?<!\w)" if re.match(r"\w", word) else ""
    after = r"(?!\w)" if re.search(r"\w$", word) else ""
    return before + re.escape(word) + after
