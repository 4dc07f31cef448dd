"""Composition of operations: a part is a module of functions, each an operation with a :class:`Device` before its own
parameters."""

import abc
import functools

from ringtrain.ops.base import Ops


def composed(*parts):
    """Give a class with a ``_device`` each operation of Ops that one of ``parts`` has. An operation that no part has
    leaves the class abstract.
    """

    def compose(cls):
        for part in parts:
            for name in Ops.__abstractmethods__ & set(vars(part)):
                if name in vars(cls):
                    raise TypeError(f"operation {name} of {part.__name__} is there already")
                setattr(cls, name, _method(getattr(part, name)))
        return abc.update_abstractmethods(cls)

    return compose


def _method(operation):
    @functools.wraps(operation)
    def method(self, *args, **kwargs):
        return operation(self._device, *args, **kwargs)

    return method
