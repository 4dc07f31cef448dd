"""Names as users list them."""

from ringtrain.bench import texts
from ringtrain.errors import UsageError, nearest


def choose(names: str, known, what: str) -> list[str]:
    """The names of a list like "ring,mpi", or every known one for "all". Raises UsageError for another name."""
    chosen = list(known) if names == "all" else [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in known:
            raise UsageError(texts.UNKNOWN_NAME(what=what, name=name, hint=nearest(name, known)))
    return list(dict.fromkeys(chosen))
