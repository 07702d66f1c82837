"""Ringmaster for PyTorch: collectives on tensors, optimizers, elastic training. Names and meanings are those of horovod.torch.

    import ringmaster.torch as rm
    rm.init()
    optimizer = rm.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    rm.broadcast_parameters(model.state_dict(), root_rank=0)

Tensors on a GPU travel through pinned host memory. `import ringmaster.torch.distributed` gives torch.distributed a backend named
"ringmaster"; ringmaster.torch.checkpoint saves and restores. See docs/clients.md.
"""

from .. import __version__
from .._common import *  # noqa: F403
from .._common import __all__ as _common
from . import mpi_ops  # noqa: F401, I001 (first: what follows needs it)
from . import elastic
from .compression import Compression
from .functions import (
    allgather_object,
    broadcast_object,
    broadcast_object_fn,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from .mpi_ops import (
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from .optimizer import DistributedOptimizer
from .sync_batch_norm import SyncBatchNorm

__all__ = [
    *_common,
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "__version__",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
