"""The fake device does what a device does, and says no where a device would."""

import numpy as np
import pytest

from ringtrain.ops.base import PoolGeometry
from ringtrain.ops.reference import ReferenceOps
from tests.fakes.device import DeviceRefusal, FakeDeviceOps, span_memory
from tests.ops.cases import calls, perform


@pytest.fixture
def ops():
    return FakeDeviceOps("float32")


def ramp(ops, *shape):
    return ops.from_host(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def test_operations_happen_at_synchronize_and_in_order(ops):
    x = ramp(ops, 4)
    y = ops.empty((4,))
    ops.add(x, x, y)
    ops.scale(y, 0.5)
    assert np.isnan(y._memory).all()
    assert [name for name, _ in ops.queued] == ["upload", "add", "scale"]
    ops.synchronize()
    assert y._memory.tolist() == [0, 1, 2, 3]


def test_to_host_and_numbers_wait(ops):
    x = ramp(ops, 4)
    assert ops.square_sum(x) == 14
    ops.scale(x, 2)
    assert ops.nonfinite(x) == 0
    ops.scale(x, 2)
    assert ops.to_host(x).tolist() == [0, 4, 8, 12]


def test_a_download_waits_and_fills_the_hosts_array(ops):
    x, host = ramp(ops, 4), np.zeros(4, np.float32)
    ops.scale(x, 2)
    ops.download(x, host)
    assert host.tolist() == [0, 2, 4, 6]
    with pytest.raises(DeviceRefusal, match="download to DeviceArray; it fills a NumPy array"):
        ops.download(x, x)
    with pytest.raises(DeviceRefusal, match="download: x is a NumPy array"):
        ops.download(host, host)


def test_it_says_what_it_is(ops):
    ops.threads(3)
    assert (ops.describe(), ops.compile_stats(), ops.queued) == ("a fake device", (0, 0), [])


def test_every_operation_gives_what_the_reference_gives(ops):
    reference = ReferenceOps("float32")
    for call in calls("float32", 3):
        wanted, got = perform(reference, call), perform(ops, call)
        assert all(wanted[name].tobytes() == got[name].tobytes() for name in wanted), str(call)


def test_fresh_memory_is_poison(ops):
    assert np.isnan(ops.to_host(ops.empty((2, 2)))).all()
    assert ops.to_host(ops.empty((2,), "uint8")).tolist() == [0xAB, 0xAB]
    assert ops.to_host(ops.empty((1,), "int32")).tobytes() == b"\xab" * 4
    assert ops.to_host(ops.zeros((2,))).tolist() == [0, 0]


def test_an_upload_reads_the_host_at_once(ops):
    host = np.ones(3, np.float32)
    x = ops.from_host(host)
    host[:] = 7
    assert ops.to_host(x).tolist() == [1, 1, 1]


def test_slices_and_shapes_are_views(ops):
    x = ops.zeros((4, 2))
    ops.fill(x[1:3].reshape((4,)), 5)
    ops.fill(x.reshape(2, 4)[:1], 1)
    assert ops.to_host(x).tolist() == [[1, 1], [1, 1], [5, 5], [0, 0]]
    assert (x.shape, x.size, x.dtype) == ((4, 2), 8, np.dtype("float32"))


def test_several_arrays_in_a_list(ops):
    y = ops.empty((2, 3))
    ops.concat([ops.zeros((2, 1)), ramp(ops, 2, 2)], y)
    assert ops.to_host(y).tolist() == [[0, 0, 1], [0, 2, 3]]


MISUSES = {
    "float": lambda x: float(x),
    "bool": lambda x: bool(x),
    "len": lambda x: len(x),
    "iterate": lambda x: list(x),
    "asarray": lambda x: np.asarray(x),
    "ufunc": lambda x: np.add(x, 1),
    "ufunc out": lambda x: np.add(np.ones(4), 1, out=x),
    "function": lambda x: np.concatenate([x, x]),
    "mixed": lambda x: np.ones(4) + x,
    "operator": lambda x: x + x,
    "compare": lambda x: x == x,
    "less": lambda x: x < 3,
    "contains": lambda x: 3 in x,
    "element": lambda x: x[0],
    "stride": lambda x: x[::2],
    "two axes": lambda x: x[:, None],
    "mask": lambda x: x[np.ones(4, bool)],
    "assign": lambda x: x.__setitem__(slice(0, 2), 3),
    "buffer": lambda x: memoryview(x),
    "copyto": lambda x: np.copyto(np.empty(4, np.float32), x),
    "frombuffer": lambda x: np.frombuffer(x),
    "format": lambda x: f"{x:.3f}",
    "index": lambda x: [1, 2][x],
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES.keys())
def test_misuse_is_refused(ops, misuse):
    with pytest.raises(TypeError):
        misuse(ramp(ops, 4))


@pytest.mark.parametrize("attribute", ["T", "sum", "copy", "ctypes", "data", "tolist", "flat", "astype"])
def test_other_attributes_are_not_there(ops, attribute):
    with pytest.raises(AttributeError):
        getattr(ramp(ops, 4), attribute)


def test_host_arrays_are_refused_as_operands(ops):
    x, host = ramp(ops, 4), np.ones(4, np.float32)
    with pytest.raises(DeviceRefusal, match=r"add: b is a NumPy array of shape \(4,\); upload it first"):
        ops.add(x, host, x)
    with pytest.raises(DeviceRefusal, match="concat: xs is a NumPy array"):
        ops.concat([x, host], x)
    with pytest.raises(DeviceRefusal, match="to_host: x is a NumPy array"):
        ops.to_host(host)
    with pytest.raises(DeviceRefusal, match="upload: out is a NumPy array"):
        ops.upload(host, host)
    with pytest.raises(DeviceRefusal, match="upload from DeviceArray; it takes a NumPy array"):
        ops.upload(x, x)


def test_arrays_of_another_device_are_refused(ops):
    with pytest.raises(DeviceRefusal, match="relu: y is an array of another device"):
        ops.relu(ramp(ops, 4), ramp(FakeDeviceOps(), 4))


def test_a_wrong_call_is_refused_when_it_is_made(ops):
    with pytest.raises(TypeError, match="missing a required argument: 'geometry'"):
        ops.max_pool(ramp(ops, 4), None, None)
    ops.synchronize()


def test_a_transport_must_synchronise_first(ops):
    x = ramp(ops, 4)
    with pytest.raises(DeviceRefusal, match=r"1 operations still queued \(first: upload\); call Ops.synchronize"):
        span_memory(x)
    ops.synchronize()
    span_memory(x[2:])[:] = 9
    assert ops.to_host(x).tolist() == [0, 1, 9, 9]


def test_an_error_of_the_arithmetic_is_raised_when_it_is_done(ops):
    ops.add(ramp(ops, 4), ramp(ops, 3), ops.empty((4,)))
    with pytest.raises(ValueError, match="broadcast"):
        ops.synchronize()


def test_a_whole_layer_runs(ops):
    geometry = PoolGeometry(2, 2)
    x, y, where = ramp(ops, 1, 4, 4, 1), ops.empty((1, 2, 2, 1)), ops.empty((1, 2, 2, 1), "uint8")
    ops.max_pool(x, y, where, geometry=geometry)
    assert ops.to_host(y).reshape(-1).tolist() == [5, 7, 13, 15]
