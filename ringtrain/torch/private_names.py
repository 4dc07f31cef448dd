"""Private names of PyTorch that this package relies on. A PyTorch that has changed one is refused at the start, by its
name, and not in the midst of a run.
"""

import inspect
from collections.abc import Iterator
from pkgutil import resolve_name

import torch

from ringtrain.errors import UsageError

TRIED = "2.12, 2.13, 2.14 and 2.15"
# In torch: what has the names, and these; "a|b": either of them.
NAMES = {
    "_C": "_current_graph_task_id",
    "_C._distributed_c10d": "Backend",
    "_compile": "_disable_dynamo",
    "amp.grad_scaler": "OptState",
    "autograd": "_profiler_enabled",
    "autograd.Variable._execution_engine": "queue_callback",
    "distributed": "BuiltinCommHookType _register_builtin_comm_hook _register_comm_hook",
    "distributed.Backend": "default_device_backend_map",
    "distributed.ProcessGroup": "_allgather_base|all_gather_single _reduce_scatter_base|reduce_scatter_single "
    "alltoall_base|all_to_all_single allgather_into_tensor_coalesced|all_gather_single_coalesced "
    "reduce_scatter_tensor_coalesced|reduce_scatter_single_coalesced _device_types _end_coalescing _get_backend "
    "_set_group_desc _set_group_name _start_coalescing",
    "distributed.Reducer": "_get_zeros_like_grad_buckets _rebuild_buckets _set_forward_pass_work_handle",
    "distributed.constants": "default_pg_timeout",
    "distributed.rendezvous": "_rendezvous_handlers",
    "futures.Future": "_set_unwrap_func",
    "Tensor": "_nnz _version",
    "UntypedStorage": "_share_fd_cpu_",
    "utils._pytree": "tree_leaves",
}
# Functions that this package replaces or calls, with their first parameters.
PARAMETERS = {
    "amp.GradScaler._unscale_grads_": "self optimizer inv_scale found_inf allow_fp16",
    "distributed.distributed_c10d.BackendConfig.get_device_backend_map": "self",
    "distributed.distributed_c10d._set_pg_timeout": "timeout group",
    "nn.parallel.DistributedDataParallel._ddp_init_helper": "self parameters expect_sparse_gradient",
    "nn.utils.clip_grad._clip_grads_with_norm_": "parameters max_norm total_norm foreach",
    "nn.utils.clip_grad._get_total_norm": "tensors norm_type error_if_nonfinite foreach",
}
# Functions with local names, or attributes of their objects, that this package reads or sets.
WITHIN = {
    "amp.GradScaler.__init__": "_per_optimizer_states",
    "distributed.distributed_c10d._new_process_group_helper": "backend_config pg",
    "nn.parallel.DistributedDataParallel.__init__": "broadcast_buffers",
    "nn.parallel.DistributedDataParallel._ddp_init_helper": "reducer logger",
}


def check_names() -> None:
    """Raise UsageError for a name that this PyTorch has not, or has with other parameters."""
    for name in _missing():
        raise UsageError(
            f"PyTorch {torch.__version__} has no torch.{name}, on which ringtrain.torch relies; tried versions are "
            f"{TRIED}: install one of these"
        )


def _missing() -> Iterator[str]:
    for owner, names in NAMES.items():
        for name in names.split():
            if not any(hasattr(_find(owner), each) for each in name.split("|")):
                yield f"{owner}.{name}"
    for function, names in PARAMETERS.items():
        if _variables(function)[: len(names.split())] != tuple(names.split()):
            yield f"{function}({names.replace(' ', ', ')})"
    for function, names in WITHIN.items():
        for name in {*names.split()} - {*_variables(function)}:
            yield f"{function} with {name} in it"


def _find(name: str):
    """Return what torch has by this name; None if there is nothing."""
    try:
        return resolve_name(f"torch.{name}")
    except (AttributeError, ImportError):
        return None


def _variables(function: str) -> tuple[str, ...]:
    """Return the names in the code of a function, its parameters first."""
    code = getattr(inspect.unwrap(_find(function)), "__code__", None)
    return () if code is None else (*code.co_varnames, *code.co_names)
