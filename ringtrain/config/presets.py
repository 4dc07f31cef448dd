"""Presets: names of the literature for ``--sync``, each a strategy with values of its options.

The values are above the defaults and below a user's own: flags and TOML files win. Another preset is one row.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ringtrain.config.option import typed


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
        return " ".join([f"--sync {self.strategy}", *(typed(name, value) for name, value in self.options.items())])


DILOCO = {"average_momentum": "keep", "outer_momentum": 0.9, "outer_lr": 0.7}
PRESETS = {
    "diloco": Preset(
        "averaging",
        {"average_every": 500, **DILOCO},
        "Douillard et al., DiLoCo, 2023, arXiv 2311.08105",
        "an outer Nesterov step between averages",
    ),
    "post-local": Preset(
        "averaging",
        {"average_every": 16, "average_momentum": "keep", "average_from": 3662},
        "Lin et al., Don't use large mini-batches, use local SGD, ICLR 2020",
        "all-reduce first, then averages",
    ),
    "easgd": Preset(
        "averaging",
        {"average_every": 10, "average_momentum": "keep", "centre_rate": 0.1},
        "Zhang, Choromanska & LeCun, Deep learning with elastic averaging SGD, NeurIPS 2015",
        "ranks and a centre move to one another",
    ),
    "streaming-diloco": Preset(
        "averaging",
        {
            "average_every": 100,
            **DILOCO,
            "fragments": 4,
            "average_delay": 5,
            "mixing": 0.5,
            "compress": "quantise",
            "compress_bits": 4,
        },
        "Douillard et al., Streaming DiLoCo, 2025, arXiv 2501.18512",
        "diloco in fragments that travel meanwhile, in 4 bits",
    ),
    "sparseloco": Preset(
        "averaging",
        {
            "average_every": 30,
            "average_momentum": "keep",
            "compress": "top-k",
            "compress_ratio": 0.03,
            "compress_chunk": 4096,
            "compress_bits": 2,
            "residual_decay": 0.95,
        },
        "Sarfi et al., SparseLoCo, 2025, arXiv 2508.15706",
        "averages by the largest changes, in 2 bits",
    ),
    "decoupled-diloco": Preset(
        "averaging",
        {"average_every": 500, **DILOCO, "quorum": 1, "grace_s": 1.0},
        "Douillard et al., Decoupled DiLoCo, 2026, arXiv 2604.21428",
        "diloco by servers that wait for a quorum",
    ),
    "sgp": Preset(
        "gossip",
        {"gossip_graph": "exponential"},
        "Assran et al., Stochastic gradient push, ICML 2019",
        "gossip on the exponential graph",
    ),
    "noloco": Preset(
        "gossip",
        {"gossip_every": 50, "outer_momentum": 0.5, "outer_lr": 0.7},
        "Kolehmainen et al., NoLoCo, 2025, arXiv 2506.10911",
        "an outer step in pairs, no all-reduce",
    ),
}


def strategy_of(sync: str) -> str:
    """Return the strategy of a name of ``--sync``: a preset's, or itself."""
    return PRESETS[sync].strategy if sync in PRESETS else sync


def setter(sync: str, name: str, value: object) -> str:
    """Return " of --sync NAME" for a value that a preset sets; nothing for another one."""
    return f" of --sync {sync}" if (name, value) in options_of(sync).items() else ""


def options_of(sync: str | None) -> Mapping[str, object]:
    """Return the values that a name of ``--sync`` sets."""
    return PRESETS[sync].options if sync in PRESETS else {}
