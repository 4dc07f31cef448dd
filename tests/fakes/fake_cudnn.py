"""A cuDNN that takes any drawing and computes nothing: for what ringtrain does around it.

What is drawn is held against the library in tests/ops/test_ops_cuda_cudnn.py; what it computes, on a device, by
scripts/gpu-acceptance.
"""

from types import SimpleNamespace


class cudnnGraphNotSupportedError(Exception):
    pass


class FakeCudnn:
    """The module. ``no_handle``, ``fails``: what making a handle and executing raise; ``refuses``: what looking for an
    engine raises, the first times. ``graphs``: how many were built."""

    data_type = SimpleNamespace(FLOAT="float32", HALF="float16", BFLOAT16="bfloat16")
    heur_mode = SimpleNamespace(A="A", FALLBACK="FALLBACK")
    numerical_note = SimpleNamespace(TENSOR_CORE="cores", DOWN_CONVERT_INPUTS="down", NONDETERMINISTIC="random")

    def __init__(self, no_handle=None, refuses=(), fails=None):
        self.no_handle, self.refuses, self.fails, self.graphs = no_handle, list(refuses), fails, 0

    def create_handle(self):
        _raise(self.no_handle)
        return object()

    def set_stream(self, handle, pointer):
        assert pointer == 7

    def pygraph(self, **options):
        self.graphs += 1
        return FakeGraph(self)


class FakeGraph:
    """The graph, and each tensor of it."""

    def __init__(self, library):
        self._library = library

    def __getattr__(self, name):
        return lambda *_, **__: self

    def check_support(self):
        _raise(self._library.refuses.pop() if self._library.refuses else None)

    def get_workspace_size(self):
        return 100

    def execute(self, addresses, workspace, handle):
        assert workspace and handle
        _raise(self._library.fails)


def _raise(error):
    if error is not None:
        raise error
