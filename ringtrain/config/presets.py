"""Presets: names of the literature for ``--sync``, each a strategy with values of its options.

The values are above the defaults and below a user's own: flags and TOML files win. Another preset is one row.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ringtrain.config.option import as_flag


@dataclass(frozen=True, slots=True)
class Preset:
    """strategy: its name. options: the values, by name. source: the paper. summary: one clause for the help"""

    strategy: str
    options: Mapping[str, object]
    source: str
    summary: str

    @property
    def flags(self) -> str:
        """The options as typed, with the strategy."""
        typed = (as_flag(name) if value is True else f"{as_flag(name)} {value}" for name, value in self.options.items())
        return f"--sync {self.strategy} {' '.join(typed)}"


PRESETS = {
    "diloco": Preset(
        "averaging",
        {"average_every": 500, "average_momentum": "keep", "outer_momentum": 0.9, "outer_lr": 0.7},
        "Douillard et al., DiLoCo, 2023, arXiv 2311.08105",
        "an outer Nesterov step between averages",
    ),
    "post-local": Preset(
        "averaging",
        {"average_every": 16, "average_momentum": "keep", "average_from": 3662},
        "Lin et al., Don't use large mini-batches, use local SGD, ICLR 2020",
        "all-reduce first, then averages",
    ),
}


def strategy_of(sync: str) -> str:
    """Return the strategy of a name of ``--sync``: a preset's, or itself."""
    return PRESETS[sync].strategy if sync in PRESETS else sync


def options_of(sync: str | None) -> Mapping[str, object]:
    """Return the values that a name of ``--sync`` sets."""
    return PRESETS[sync].options if sync in PRESETS else {}
