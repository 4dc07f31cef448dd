"""The bytes that operations move at the least."""

import numpy as np

from ringtrain.ops.cuda.traffic import bytes_of

HALF, WHOLE, STATISTICS = np.zeros((4, 10), np.float16), np.zeros((4, 10), np.float32), np.zeros((1, 10), np.float32)


def test_each_array_once():
    assert bytes_of("max_pool", {"x_NHWC": WHOLE, "y_NPQC": HALF}) == 160 + 80
    assert bytes_of("add_all", {"sources": [WHOLE] * 3, "targets": [WHOLE]}) == 4 * 160


def test_statistics_are_of_what_is_read_twice():
    arrays = {"x_NHWC": HALF, "y_NHWC": HALF, "mean_GC": STATISTICS}
    assert bytes_of("batch_norm", arrays, relu=True) == 3 * 80 + 40
    back = {**arrays, "dy_NHWC": HALF, "dx_NHWC": HALF}
    assert [bytes_of("batch_norm_back", back, relu) for relu in (False, True)] == [5 * 80 + 40, 7 * 80 + 40]
    back["dx_NHWC"] = None
    assert [bytes_of("batch_norm_back", back, relu) for relu in (False, True)] == [2 * 80 + 40, 3 * 80 + 40]


def test_in_place_is_to_and_fro():
    assert bytes_of("finish", {"y": HALF, "b_K": None}) == 160
    assert [bytes_of("unfinish", {"dy": HALF, "y": HALF}, relu) for relu in (False, True)] == [80, 240]


def test_the_largest_are_found_in_several_passes():
    assert bytes_of("take_largest", {"x": WHOLE}) == 5 * 160
    assert bytes_of("take_largest", {"x": WHOLE.astype(np.float64)}) == 8 * 320
