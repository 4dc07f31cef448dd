"""The parameters of a network, and where each lies in the arena."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

Shape = tuple[int, ...]  # of one example, without N


@dataclass(frozen=True, slots=True)
class Fill:
    """The initial values of a parameter. kind: constant (value), gaussian (std), xavier (Caffe's, uniform), he
    (gaussian, fan-in), uniform (bound). ``fan_in`` and ``fan_out`` count connections."""

    kind: str
    value: float = 0.0
    fan_in: int = 0
    fan_out: int = 0


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns ``start:stop`` of a ``total``."""

    start: int
    stop: int
    total: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """One named array of a layer. role: weight, bias, norm (scale or shift of a normalisation) or statistic
    (a running average: its "gradient" is the batch's statistic, and its update is :meth:`Ops.approach`). ``columns``:
    the columns of a whole parameter that this one is, if other ranks have the rest."""

    name: str
    shape: Shape
    fill: Fill
    role: str = "weight"
    lr: float = 1.0  # multiplies the learning rate
    decay: float = 1.0  # multiplies the weight decay
    rate: float = 0.0  # of a statistic
    columns: Columns | None = None
    frozen: bool = False  # never updated
    table: bool = False  # rows that are looked up or added, and no product takes

    @property
    def whole_shape(self) -> Shape:
        return self.shape if self.columns is None else (*self.shape[:-1], self.columns.total)

    def of_columns(self, start: int, stop: int) -> "Parameter":
        """Return columns start:stop of this parameter as one of their own."""
        columns = Columns(start, stop, self.shape[-1])
        return replace(self, shape=(*self.shape[:-1], stop - start), columns=columns)

    def own(self, whole: np.ndarray) -> np.ndarray:
        """Return this parameter's columns of the whole one."""
        return whole if self.columns is None else whole[..., self.columns.start : self.columns.stop]

    def take(self, flat: np.ndarray, start: int, values: np.ndarray) -> None:
        """Copy the elements of the whole parameter from ``start`` on to ``flat``, both flat, as far as they are of
        this parameter's columns."""
        if self.columns is None:
            flat[start : start + values.size] = values
            return
        columns = self.columns
        rows, numbers = np.divmod(np.arange(start, start + values.size), columns.total)
        ours = (columns.start <= numbers) & (numbers < columns.stop)
        flat[rows[ours] * (columns.stop - columns.start) + numbers[ours] - columns.start] = values[ours]


@dataclass(frozen=True, slots=True)
class Span:
    """Elements ``start:stop`` of the arena: one parameter."""

    name: str  # "layer.parameter"
    start: int
    stop: int
    shape: Shape
    parameter: Parameter = field(compare=False)

    @property
    def count(self) -> int:
        """The number of elements of the parameter; ``stop - start`` may be larger, padded with zeros."""
        return math.prod(self.shape)
