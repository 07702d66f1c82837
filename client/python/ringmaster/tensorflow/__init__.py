"""Ringmaster for TensorFlow: collectives on tensors, distributed optimizers and tapes.

    import ringmaster.tensorflow as rm
    rm.init()
    optimizer = rm.DistributedOptimizer(keras.optimizers.Adam(1e-3 * rm.size()))

Names and meanings are those of horovod.tensorflow. Keras callbacks are in ringmaster.tensorflow.keras. See docs/clients.md.
"""

import importlib
from typing import Any

from .. import (
    Adasum,
    Average,
    HorovodInternalError,
    HorovodVersionMismatchError,
    HostsUpdatedInterrupt,
    InvalidError,
    LeftError,
    Max,
    Min,
    MismatchError,
    PeerLostError,
    ProcessSet,
    Product,
    ReduceOp,
    RingmasterError,
    Sum,
    add_process_set,
    barrier,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    progress,
    rank,
    remove_process_set,
    report,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from .collectives import (
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    broadcast,
    broadcast_,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    reducescatter,
)
from .compression import Compression
from .ops import local_rank_op, local_size_op, process_set_included_op, rank_op, size_op
from .optimizer import DistributedOptimizer, PartialDistributedOptimizer
from .session import BroadcastGlobalVariablesHook, broadcast_global_variables
from .tape import DistributedGradientTape, PartialDistributedGradientTape
from .util import _executing_eagerly  # noqa: F401 (tests of programs import it)

# Imported when they are asked for: they import Keras, which takes seconds.
_LAZY = {
    "SyncBatchNormalization": ("sync_batch_norm", "SyncBatchNormalization"),
    "RingAllReduce": ("strategy", "RingAllReduce"),
    "Strategy": ("strategy", "Strategy"),
    "elastic": ("elastic", None),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LAZY[name]
    found = importlib.import_module(f".{module}", __name__)
    return found if attribute is None else getattr(found, attribute)


__all__ = [
    "Adasum",
    "Average",
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "InvalidError",
    "LeftError",
    "Max",
    "Min",
    "MismatchError",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "RingAllReduce",
    "RingmasterError",
    "Strategy",
    "Sum",
    "SyncBatchNormalization",
    "add_process_set",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "process_set_included_op",
    "progress",
    "rank",
    "rank_op",
    "reducescatter",
    "remove_process_set",
    "report",
    "rocm_built",
    "shutdown",
    "size",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
