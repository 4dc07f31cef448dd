"""Private names of PyTorch that this package relies on: a PyTorch without one is refused at the start."""

import inspect
from pkgutil import resolve_name

import torch

from ringtrain.errors import UsageError

TRIED = "2.12.1, 2.13.0, 2.14.1 and 2.15.0"
# What has the names, in torch, and these; "a|b": either of them. Of a function: its parameters, and names in its code.
NAMES = {
    "_C": "_current_graph_task_id",
    "_C._distributed_c10d": "Backend",
    "_compile": "_disable_dynamo",
    "amp.GradScaler.__init__": "_per_optimizer_states",
    "amp.GradScaler._unscale_grads_": "optimizer inv_scale found_inf allow_fp16",
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
    "distributed.distributed_c10d.BackendConfig": "get_device_backend_map",
    "distributed.distributed_c10d._new_process_group_helper": "backend_config pg",
    "distributed.distributed_c10d._set_pg_timeout": "timeout group",
    "distributed.rendezvous": "_rendezvous_handlers",
    "futures.Future": "_set_unwrap_func",
    "nn.parallel.DistributedDataParallel.__init__": "broadcast_buffers",
    "nn.parallel.DistributedDataParallel._ddp_init_helper": "parameters expect_sparse_gradient reducer logger",
    "utils.data.DataLoader": "_get_iterator _index_sampler",
    "nn.utils.clip_grad._clip_grads_with_norm_": "parameters max_norm total_norm foreach",
    "nn.utils.clip_grad._get_total_norm": "tensors norm_type error_if_nonfinite foreach",
    "Tensor": "_nnz _version",
    "UntypedStorage": "_share_fd_cpu_",
    "utils._pytree": "tree_leaves",
}


def check_names() -> None:
    """Raise UsageError for a name that this PyTorch has not."""
    for owner, names in NAMES.items():
        try:
            value = inspect.unwrap(resolve_name(f"torch.{owner}"))
        except (AttributeError, ImportError):
            value = None
        code = getattr(value, "__code__", None)
        inside = () if code is None else code.co_varnames + code.co_names
        for name in names.split():
            if not any(hasattr(value, each) or each in inside for each in name.split("|")):
                raise UsageError(
                    f"PyTorch {torch.__version__} has no {name} in torch.{owner}, on which ringtrain.torch relies; "
                    f"tried versions are {TRIED}: install one of these"
                )
