"""The operations in plain NumPy: short enough to check by eye, and the reference of the fast ones."""

import numpy as np

from ringtrain.ops.base import methods_of
from ringtrain.ops.host import HostOps
from ringtrain.ops.reference import activation, conv, exchange, loss, norm, optim, pool, sequence, simple, windows

MODULES = activation, conv, exchange, loss, norm, optim, pool, sequence, simple, windows
quiet = np.errstate(all="ignore")  # infinities and NaN are results that training reports, not warnings


class ReferenceOps(HostOps):
    """The operations in plain NumPy: the functions of :data:`MODULES`, and the methods below."""

    name = "reference"
    vars().update(methods_of(HostOps, MODULES, lambda function: staticmethod(quiet(function))))

    def describe(self):
        return self.numerics()

    def numerics(self):
        return f"NumPy {np.__version__}"

    def threads(self, count):
        """Do nothing: NumPy's BLAS reads OPENBLAS_NUM_THREADS when it is loaded, and cannot change later."""

    def empty(self, shape, dtype=None):
        return np.empty(shape, self.dtype if dtype is None else dtype)

    # A convolution may be given an input that is not normalised yet.
    @quiet
    def conv2d(self, x_NHWC, w_RSCK, b_K, y_NPQK, geometry, relu=False, moments=None, ghost=0):
        conv.conv2d(self.whole(x_NHWC), w_RSCK, b_K, y_NPQK, geometry, relu)

    @quiet
    def conv2d_back(
        self, x_NHWC, w_RSCK, y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC, geometry, relu=False, accumulate=False, add=False
    ):
        before, arrays = dx_NHWC.copy() if add else None, (y_NPQK, dy_NPQK, dw_RSCK, db_K, dx_NHWC)
        conv.conv2d_back(self.whole(x_NHWC), w_RSCK, *arrays, geometry, relu, accumulate)
        if before is not None:
            dx_NHWC += before
