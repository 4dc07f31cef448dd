"""The operations of compressed gradients: the largest elements, and factors of low rank."""

from abc import ABC, abstractmethod

from ringtrain.arrays import Array


class CompressionOps(ABC):
    """Part of :class:`ringtrain.ops.base.Ops`, whose rules hold here. ``pairs`` are bytes (uint8), laid out by
    :mod:`ringtrain.ops.pairs`.
    """

    @abstractmethod
    def take_largest(self, x: Array, pairs: Array, k: int) -> None:
        """Move the k elements of largest magnitude of a flat x, of fewer than 2^31 elements, to ``pairs``, in the order
        of their indices, and set them to 0 in x. Of equals the first are taken; NaN is larger than infinity. The same
        elements from every implementation.
        """

    @abstractmethod
    def add_pairs(self, pairs: Array, y: Array, k: int) -> None:
        """y[index] += value, for k pairs"""

    @abstractmethod
    def product(self, a, b, y, a_transposed=False, b_transposed=False, accumulate=False) -> None:
        """y = a · b of matrices, either of them transposed first; or y += a · b"""

    @abstractmethod
    def orthonormalise(self, x_MR: Array) -> None:
        """Replace the columns of x by orthonormal columns with the same span. A column that lies within the span of
        those before it, or is 0, is drawn anew, from its index alone: zeros become a random basis. R <= M. Modified
        Gram-Schmidt, twice, sums in float64. Source: Giraud et al. 2005, "twice is enough".
        """
