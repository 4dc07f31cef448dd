"""Shapes of one example, as text and as checked inputs of a layer. Every error names the layer, the actual shape and
the expected one."""

import math
from collections.abc import Sequence

from ringtrain.errors import ModelError
from ringtrain.nn.base import Layer, Shape


def format_shape(shape: Shape) -> str:
    """Return a shape as errors and tables show it: 28x28x1."""
    return "x".join(str(extent) for extent in shape)


def misfit(layer: Layer, inputs: Sequence[Shape], wanted: str) -> ModelError:
    """Return the error of inputs that do not fit."""
    got = " and ".join(format_shape(shape) for shape in inputs) or "no input"
    return ModelError(f"layer {layer.name!r} ({type(layer).__name__}) got {got}, wants {wanted}")


def single(layer: Layer, inputs: Sequence[Shape]) -> Shape:
    """Return the shape of the one input. Raises ModelError"""
    if len(inputs) != 1:
        raise misfit(layer, inputs, "one input")
    return tuple(inputs[0])


def image(layer: Layer, inputs: Sequence[Shape]) -> Shape:
    """Return [H, W, C] of the one input. Raises ModelError"""
    return spatial(layer, inputs, 2)


def spatial(layer: Layer, inputs: Sequence[Shape], axes: int) -> Shape:
    """Return the shape of the one input, of so many spatial axes and channels. Raises ModelError"""
    shape = single(layer, inputs)
    if len(shape) != axes + 1:
        raise misfit(
            layer,
            inputs,
            {
                1: "a sequence LxD of features: an input of this shape, or an Embedding before it",
                2: "an image HxWxC: put it before the layer that flattens",
                3: "a volume DxHxWxC",
            }[axes],
        )
    return shape


def grid(layer: Layer, inputs: Sequence[Shape]) -> Shape:
    """Return the shape of the one input, of any spatial axes and channels. Raises ModelError"""
    shape = single(layer, inputs)
    if len(shape) < 2:
        wanted = "spatial axes before its channels: a sequence LxD, an image HxWxC or a volume DxHxWxC"
        raise misfit(layer, inputs, f"{wanted}, so put it before the layer that flattens")
    return shape


def sequence(layer: Layer, inputs: Sequence[Shape]) -> Shape:
    """Return [L, D] of the one input. Raises ModelError"""
    return spatial(layer, inputs, 1)


def rows(layer: Layer, inputs: Sequence[Shape]) -> Shape:
    """Return [D] or [L, D] of the one input. Raises ModelError"""
    shape = single(layer, inputs)
    if len(shape) not in (1, 2):
        raise misfit(
            layer, inputs, "a list of features, or a sequence LxD of them: put a Flatten or GlobalAvgPool before it"
        )
    return shape


def several(layer: Layer, inputs: Sequence[Shape]) -> list[Shape]:
    """Check that there are two inputs or more. Raises ModelError"""
    if len(inputs) < 2:
        raise misfit(layer, inputs, 'two or more inputs: inputs = ["a", "b"]')
    return [tuple(shape) for shape in inputs]


def element_count(shape: Shape) -> int:
    return math.prod(shape)


def windows(layer: Layer, geometry, inputs: Sequence[Shape], axes: int = 2) -> Shape:
    """Return the extents, such as (P, Q), after a kernel has moved along so many spatial axes. Raises ModelError"""
    *extents, _ = spatial(layer, inputs, axes)
    if min(extents) + 2 * geometry.pad < geometry.kernel:
        raise misfit(
            layer, inputs, f"at least {format_shape((geometry.kernel,) * axes)} with padding, the size of its kernel"
        )
    return tuple(map(geometry.output, extents))
