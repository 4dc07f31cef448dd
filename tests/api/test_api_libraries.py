"""Arrays of other libraries: fakes of those that are not here, and PyTorch and JAX where they are."""

import sys

import numpy as np
import pytest

from ringtrain.api.libraries import lend
from ringtrain.errors import UsageError
from tests.api.communicators import on_ranks, together
from tests.fakes.arrays import Lender, cupy_like, halves
from tests.says import says


@pytest.fixture
def cupy(monkeypatch):
    module = cupy_like()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


def test_cupy_goes_through_the_host_and_back_to_its_device(cupy, alone):
    with cupy.Device(1):
        arguments, out = (cupy.asarray(np.full((2, 3), value, np.float32)) for value in (4, 0))
    result = alone.allreduce(arguments)
    assert type(result) is cupy.ndarray and result.device.id == 1 and (result.get() == 4).all()
    assert alone.allreduce(arguments, out=out) is out and (out.get() == 4).all()


@on_ranks(3)
def test_cupy_on_several_ranks(communicator, cupy):
    array = cupy.asarray(np.arange(6, dtype=np.float64).reshape(2, 3))
    column = array[:, 1]
    assert communicator.allreduce(column, out=column) is column
    assert array.get().tolist() == [[0, 3, 2], [3, 12, 5]]
    reduction = communicator.prepare(column)
    for times in (3, 9):
        reduction.start()
        assert reduction.wait() is column and array.get().tolist() == [[0, 3 * times, 2], [3, 12 * times, 5]]
    unlike = says("float64", [2], [2, 3])
    with pytest.raises(UsageError, match=unlike):
        communicator.allreduce(array, out=column)


@on_ranks(2)
def test_any_array_that_speaks_dlpack_is_read_where_it_lies(communicator):
    memory = np.arange(6.0).reshape(2, 3)
    array = Lender(memory.T)
    result = communicator.allreduce(array)
    assert type(result) is np.ndarray and result.tolist() == (memory.T * 2).tolist()
    assert communicator.allreduce(array, out=array) is array and memory.tolist() == [[0, 2, 4], [6, 8, 10]]


def test_a_read_only_lender_is_not_written_to_and_unknown_devices_and_shy_lenders_are_refused(alone):
    memory = np.ones(3)
    memory.flags.writeable = False
    assert alone.allreduce(Lender(memory)).tolist() == [1, 1, 1]
    with pytest.raises(UsageError, match=says("out")):
        alone.allreduce(np.ones(3), out=Lender(memory))
    with pytest.raises(UsageError, match=says("a tests.fakes.arrays.Lender", 10, 3)):
        lend(Lender(np.ones(3), device=(10, 3)))
    with pytest.raises(UsageError, match=says("pass", "NumPy")):
        lend(Lender(np.ones(3, ">f4")))


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def body(communicator):
        array = np.array([1.5, -2, 300], ml_dtypes.bfloat16)
        assert communicator.allreduce(array).dtype == array.dtype
        assert communicator.allreduce(array, "mean", out=array).astype(float).tolist() == [1.5, -2, 300]
        return communicator.allreduce(array[::-1]).astype(float).tolist()

    assert together(3, body) == [[900, -6, 4.5]] * 3


# ── PyTorch ───────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "int64"])
@on_ranks(3)
def test_torch_types(communicator, dtype, torch):
    tensor = torch.arange(12, dtype=getattr(torch, dtype)).reshape(3, 4).t()[::2]
    want = (tensor * 3).tolist()
    result = communicator.allreduce(tensor)
    assert result.dtype == tensor.dtype and result.tolist() == want
    assert communicator.allreduce(tensor, out=tensor) is tensor and tensor.tolist() == want


@on_ranks(2)
def test_torch_parameters_are_refused_and_detached_ones_are_their_memory(communicator, torch):
    layer = torch.nn.Linear(3, 2)
    with pytest.raises(UsageError, match=says("requires", "autograd")):
        communicator.allreduce(layer.weight)
    with torch.no_grad():
        layer.weight.fill_(communicator.rank)
    communicator.allreduce(layer.weight.detach(), "mean", out=layer.weight.detach())
    assert (layer.weight == 0.5).all()
    layer(torch.ones(1, 3)).sum().backward()
    reduction = communicator.prepare(layer.weight.grad)
    reduction.start()
    assert (reduction.wait() == 2).all() and (layer.weight.grad == 2).all()


@on_ranks(2)
def test_torch_tensors_in_our_memory(communicator, torch):
    tensor = torch.from_numpy(communicator.empty(5, "bfloat16").view("int16")).view(torch.bfloat16)
    tensor.fill_(1.5)
    assert communicator.allreduce(tensor, out=tensor) is tensor and tensor.tolist() == [3] * 5
    assert [request.position for request in communicator._plans._kept] == [(0, 0)]


def test_torch_tensors_that_are_no_plain_memory(alone, torch):
    for tensor in (torch.eye(3).to_sparse(), torch.ones(3, device="meta"), torch.ones(3, dtype=torch.complex64).conj()):
        with pytest.raises(UsageError, match=says("a torch.Tensor", "dense", "GPU")):
            lend(tensor)
    with pytest.raises(UsageError, match=says("uint8")):
        alone.allreduce(torch.ones(3, dtype=torch.uint8))


# ── JAX ───────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32"])
@on_ranks(3)
def test_jax_types(communicator, dtype, jax):
    array = jax.numpy.arange(12, dtype=dtype).reshape(3, 4).T
    result = communicator.allreduce(array)
    assert isinstance(result, jax.Array) and result.dtype == array.dtype and result.sharding == array.sharding
    assert result.tolist() == (array * 3).tolist()


def test_jax_arrays_are_not_written_to_and_tracers_not_read(alone, jax):
    array = jax.numpy.ones(3)
    with pytest.raises(UsageError, match=says("out")):
        alone.allreduce(array, out=array)
    with pytest.raises(UsageError, match=says("the array")):
        alone.prepare(array)
    with pytest.raises(UsageError, match=says("jit", "vmap")):
        jax.jit(alone.allreduce)(array)
    outside = jax.ShapeDtypeStruct(array.shape, array.dtype)
    assert jax.jit(lambda x: jax.pure_callback(alone.allreduce, outside, x))(array).tolist() == [1, 1, 1]


# ── without any ───────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("op, want", [("sum", [6, -7.5]), ("mean", [2, -2.5]), ("max", [3, -2.5]), ("min", [1, -2.5])])
def test_bfloat16_is_added_as_numbers_and_not_as_bits(monkeypatch, op, want):
    Halves = halves(monkeypatch)

    def body(communicator):
        result = communicator.allreduce(Halves([communicator.rank + 1, -2.5]), op)
        assert isinstance(result, Halves) and result.values().tolist() == want
        array = Halves([communicator.rank + 1, -2.5])
        reduction = communicator.prepare(array, op)
        reduction.start()
        assert reduction.wait().values().tolist() == want

    together(3, body)


def test_what_is_no_array_of_numbers_is_refused(alone):
    with pytest.raises(UsageError, match=says("uint16")):  # bits alone
        alone.allreduce(alone.empty(3, "bfloat16"))
    for thing in (3.0, [1, 2], "text", None):
        with pytest.raises(UsageError, match=says(type(thing).__name__, "PyTorch", "JAX")):
            lend(thing)


# ── subclasses of NumPy's array ───────────────────────────────────────────────────────────────────────────────
class Quantity(np.ndarray):
    """An array with a unit, as astropy has it."""


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.ma.array([1.0, 2.0], mask=[False, True]), says("a numpy.ma.MaskedArray")),
        (np.ma.masked, says("a numpy.ma.core.MaskedConstant")),
        (np.ones(2).view(Quantity), says(f"a {__name__}.Quantity")),
    ],
)
@on_ranks(2)
def test_arrays_that_mean_more_than_their_memory_are_refused(communicator, array, text):
    rank, plain = communicator.rank, np.ones(np.shape(array))
    for call in (
        lambda: communicator.allreduce(array),
        lambda: communicator.allreduce(plain, out=array),
        lambda: communicator.allreduce(array, reproducible=True),
        lambda: communicator.prepare(array),
        lambda: communicator.broadcast(array),
        lambda: communicator.all_gather(array),
        lambda: communicator.all_gather(plain, out=array),
        lambda: communicator.reduce_scatter(array),
        lambda: communicator.gather(array),
        lambda: communicator.scatter(array if rank == 0 else None, out=array),
        lambda: communicator.all_to_all(array),
        lambda: communicator.send(array, 1 - rank),
        lambda: communicator.recv(array, 1 - rank),
    ):
        with pytest.raises(UsageError) as error:
            call()
        assert str(error.value) == text


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_numpys_own_subclasses_are_memory(tmp_path):
    mapped = np.memmap(tmp_path / "numbers", np.float32, "w+", shape=(2, 3))
    records = np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")])

    def body(communicator):
        matrix = np.matrix([[1.0, 2.0], [3.0, 4.0]])
        for algorithm in ("auto", "ring", "mpi"):
            assert communicator.allreduce(matrix, algorithm=algorithm).tolist() == [[2, 4], [6, 8]]
        assert communicator.allreduce(matrix, out=matrix) is matrix and matrix[1, 1] == 8
        if communicator.rank == 0:
            mapped[:] = 5
        communicator.barrier()
        assert (communicator.allreduce(mapped) == 10).all()
        assert (communicator.all_gather(records)["b"] == [[2, 4]] * 2).all()

    together(2, body)
