"""The layer kinds of model files: name → class."""

from ringtrain.nn.conv import Conv2D
from ringtrain.nn.layers import Add, Concat, Dropout, Flatten, Linear, ReLU
from ringtrain.nn.norm import LRN, BatchNorm
from ringtrain.nn.pool import AvgPool, GlobalAvgPool, MaxPool

LAYERS = {
    kind.__name__: kind
    for kind in (
        Conv2D,
        Linear,
        ReLU,
        MaxPool,
        AvgPool,
        GlobalAvgPool,
        LRN,
        BatchNorm,
        Dropout,
        Flatten,
        Add,
        Concat,
    )
}
