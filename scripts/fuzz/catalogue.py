"""Every reader that is fuzzed, by name."""

from scripts.fuzz.reader import Reader
from scripts.fuzz.readers_data import DATA
from scripts.fuzz.readers_surroundings import SURROUNDINGS
from scripts.fuzz.readers_texts import TEXTS

READERS: dict[str, Reader] = {reader.name: reader for reader in (*TEXTS, *DATA, *SURROUNDINGS)}
