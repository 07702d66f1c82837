"""Ringmaster in the training process: collectives, progress and checkpoints through the pod's sidecar.

    import ringmaster
    ringmaster.init()
    mean = ringmaster.allreduce(gradient, name="gradient")   # numpy; see ringmaster.tensorflow for TensorFlow

Names and meanings are those of Horovod. Ranks may call collectives in any order; a name says which tensors belong together.
The same program runs alone: without a sidecar it is rank 0 of 1. See docs/clients.md.
"""

from . import _stacks
from ._common import *  # noqa: F403
from ._common import __all__ as _common
from ._ops import (
    allgather,
    allgather_async,
    allgather_object,
    allreduce,
    allreduce_async,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_async,
    broadcast_object,
    broadcast_object_fn,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_async,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    poll,
    reducescatter,
    reducescatter_async,
    synchronize,
)
from .compression import Compression

_stacks.register()

__version__ = "0.1.0"

__all__ = [
    *_common,
    "Compression",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_async",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_async",
    "broadcast_object",
    "broadcast_object_fn",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_async",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]
