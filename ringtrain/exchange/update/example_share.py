"""The weight of a rank in an average of weights."""


class ExampleShare:
    """Counts this rank's examples, and those of all ranks, since the last average. ``here``: examples of this
    iteration on this rank."""

    def __init__(self) -> None:
        self.here = self._own = self._total = 0

    def __bool__(self) -> bool:
        """Whether any rank has seen an example."""
        return self._total > 0

    def add(self, here: int, total: int) -> None:
        """Count an iteration of ``total`` examples."""
        self.here = here
        self._own += here
        self._total += total

    def take(self) -> float:
        """Return this rank's share, and count from 0."""
        share = self._own / self._total
        self._own = self._total = 0
        return share
