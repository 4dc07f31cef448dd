"""Blocks: a sequence of layers that a model file defines once and uses many times. Text in, text out: plain tables.

    [blocks]
    twice = [
      { name = "a", kind = "Linear", units = "$units" },
      { name = "b", kind = "Linear", units = "$units" },
    ]

    layers = [ ..., { name = "middle", block = "twice", units = 64 }, ... ]

becomes the layers ``middle.a`` and ``middle.b``. A value "$key" is the key of the use; an input "$input" is
the block's input, which is the layer before it. Other names in ``inputs`` are of layers within the block."""

from ringtrain.errors import ModelError, nearest

OWN_KEYS = ("name", "block")
MOST_LAYERS = 10_000  # a short file can use a long block often


def expand_blocks(layers: list[dict], blocks: dict[str, list[dict]]) -> list[dict]:
    """Replace every use of a block by the block's layers.

    Raises: ModelError for an unknown block, a "$key" that the use does not give, a key that no "$key" takes; or for
    more than ``MOST_LAYERS`` layers"""
    plain: list[dict] = []
    for entry in layers:
        before = str(plain[-1].get("name")) if plain else "input"
        plain.extend(_use(entry, blocks, before) if "block" in entry else [entry])
        if len(plain) > MOST_LAYERS:
            raise ModelError(f"the model has more than {MOST_LAYERS:,} layers: use fewer of them, or larger ones")
    return plain


def _use(entry: dict, blocks: dict, before: str) -> list[dict]:
    name, block = str(entry.get("name")), entry["block"]
    if not isinstance(block, str) or block not in blocks:
        raise ModelError(f"layer {name!r}: unknown block {block!r}; {nearest(str(block), blocks)}")
    values = {key: value for key, value in entry.items() if key not in OWN_KEYS}
    _check_values(name, block, values, blocks[block])
    within = {str(layer.get("name")) for layer in blocks[block]}
    return [_layer(layer, name, values, within, before, i == 0) for i, layer in enumerate(blocks[block])]


def _check_values(name: str, block: str, values: dict, layers: list[dict]) -> None:
    wanted = {value[1:] for layer in layers for value in layer.values() if _is_hole(value)}
    for key in values:
        if key not in wanted:
            raise ModelError(f"layer {name!r}: block {block!r} takes no key {key!r}; {nearest(key, wanted)}")
    for key in sorted(wanted - set(values)):
        raise ModelError(f"layer {name!r}: block {block!r} wants the key {key!r}")


def _is_hole(value) -> bool:
    return isinstance(value, str) and value.startswith("$")


def _layer(layer: dict, prefix: str, values: dict, within: set, before: str, first: bool) -> dict:
    expanded = {key: values[value[1:]] if _is_hole(value) else value for key, value in layer.items()}
    expanded["name"] = f"{prefix}.{layer.get('name')}"
    if isinstance(expanded.get("inputs"), list):
        expanded["inputs"] = [_source(source, prefix, within, before) for source in expanded["inputs"]]
    elif first:
        expanded.setdefault("inputs", [before])
    return expanded


def _source(source, prefix: str, within: set, before: str):
    if source == "$input":
        return before
    return f"{prefix}.{source}" if str(source) in within else source
