"""The errors and notes that a user sees of this room, each with named fields."""

from ringtrain.template import Template

# nccl.py
INSTALL_NCCL = Template("pip install nvidia-nccl-cu13, for a CuPy of CUDA 12 nvidia-nccl-cu12")
