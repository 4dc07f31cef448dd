"""The layer kinds of model files: name → class."""

from ringtrain.nn.conv import Conv2D
from ringtrain.nn.conv_columns import Conv1D, Conv3D, ConvTranspose2D
from ringtrain.nn.layers import GELU, Add, Concat, Dropout, Flatten, Linear, ReLU, Sigmoid, SiLU, Tanh
from ringtrain.nn.norm import BatchNorm, GroupNorm, LayerNorm
from ringtrain.nn.pool import AvgPool, GlobalAvgPool, MaxPool, Upsample
from ringtrain.nn.sequence import Attention, ClassToken, Embedding, FirstToken, PositionEmbedding

KINDS = (
    Conv2D, Conv1D, Conv3D, ConvTranspose2D, Upsample, Linear, ReLU, Sigmoid, Tanh, SiLU, GELU, MaxPool, AvgPool,
    GlobalAvgPool, BatchNorm, LayerNorm, GroupNorm, Embedding, PositionEmbedding, ClassToken, FirstToken,
    Attention, Dropout, Flatten, Add, Concat,
)  # fmt: skip
LAYERS = {kind.__name__: kind for kind in KINDS}
