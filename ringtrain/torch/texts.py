"""Errors and notes of PyTorch's process groups over ringtrain."""

from ringtrain.template import Template

# world
OTHER_SIZE = Template(
    "init_process_group got rank {rank} of {size}, and the MPI says rank {own} of {ranks}: leave rank and world_size "
    "out, or start the script by mpirun or srun alone"
)


# tensors
SPARSE = Template("a {layout} tensor cannot be sent: pass tensor.to_dense()")
UNEQUAL_PARTS = Template("{name} has {got} parts, and the group has {size} ranks: give one part for each")
UNEQUAL_SIZES = Template("{name}: {got:,} bytes, and {wanted:,} are wanted: {rule}")
