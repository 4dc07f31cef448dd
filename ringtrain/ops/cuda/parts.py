"""Composition of operations: each part is a class with some of the methods of Ops, and shares a :class:`Device`."""

import abc

from ringtrain.ops.base import Ops


def composed(*parts):
    """Give a class each operation of Ops that one of ``parts`` has. An object of it keeps one of each in ``_parts``, by
    class. An operation that no part has leaves the class abstract.
    """

    def compose(cls):
        for part in parts:
            for name in Ops.__abstractmethods__ & set(vars(part)):
                if name in vars(cls):
                    raise TypeError(f"operation {name} of {part.__name__} is there already")
                setattr(cls, name, _forwarding(part, name))
        return abc.update_abstractmethods(cls)

    return compose


def _forwarding(part, name):
    def method(self, *args, **kwargs):
        return operation(self._parts[part], *args, **kwargs)

    operation = getattr(part, name)
    method.__name__, method.__doc__ = name, operation.__doc__
    return method
