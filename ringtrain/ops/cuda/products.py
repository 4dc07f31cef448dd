"""Fully connected layers and products of matrices.

    y  = x · w + b         [N, D] · [D, K]
    dw = xᵀ · dy           sums over N, in the type of weights
    dx = dy · wᵀ

Weights are rounded to the type of activations before products: their loads are then plain copies to shared memory like
all others, which would be impossible with arithmetic on the way. A pass does so once for all layers; weights that are
given alone are rounded for each product, into scratch memory."""

from ringtrain.ops.cuda.channels import unfinish
from ringtrain.ops.cuda.device import Device
from ringtrain.ops.cuda.gemm import matrix, products_of, rounded, turned
from ringtrain.ops.cuda.wgmma import is_whole


def linear(device: Device, x_ND, w_DK, b_K, y_NK, relu=False):
    (n, d), k = x_ND.shape, w_DK.shape[1]
    x, y, w = matrix(x_ND, n, d), matrix(y_NK, n, k), matrix(rounded(device, w_DK), d, k)
    _multiply(device, "linear", device.kernels, x, w, y, b_K, relu)


def linear_back(device: Device, x_ND, w_DK, y_NK, dy_NK, dw_DK, db_K, dx_ND, relu=False, accumulate=False):
    (n, d), k = x_ND.shape, w_DK.shape[1]
    unfinish(device, dy_NK, y_NK, db_K, relu, accumulate)
    x, dy, dw = matrix(x_ND, n, d), matrix(dy_NK, n, k), matrix(dw_DK, d, k)
    _multiply(device, "linear dw", device.kernels, turned(x), dy, dw, accumulate=accumulate)
    if dx_ND is not None:
        w = matrix(rounded(device, w_DK), d, k)
        _multiply(device, "linear dx", device.kernels, dy, turned(w), matrix(dx_ND, n, d))


def product(device: Device, a, b, y, a_transposed=False, b_transposed=False, accumulate=False):
    left, right = (matrix(each, *each.shape) for each in (a, b))
    left, right = turned(left) if a_transposed else left, turned(right) if b_transposed else right
    kernels = device.kernels.of(a.dtype)
    _multiply(device, "product", kernels, left, right, matrix(y, *y.shape), accumulate=accumulate)


def _multiply(device: Device, what, kernels, a, b, y, bias=None, relu=False, accumulate=False):
    rows, columns, depth = a.rows, b.columns, a.columns
    variant = device.choice(
        device,
        (what, kernels.act.name, (rows, columns, depth), a.transposed, b.transposed, bias is not None, relu),
        lambda: products_of(device, kernels, rows, columns, is_whole(a.stride, b.stride)),
        lambda variant: _try(device, variant, a, b, y, bias, relu, accumulate),
        kernels.act,
    )
    variant.run(a, b, y, bias, relu, accumulate)


def _try(device: Device, variant, a, b, y, bias, relu, accumulate):
    if accumulate:  # y itself holds sums that are added to
        y = matrix(device.scratch("trial", y.rows * y.columns, y.array.dtype), y.rows, y.columns)
    variant.run(a, b, y, bias, relu)
    return y.array
