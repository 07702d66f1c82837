"""Ringmaster in the training process: collectives, progress and checkpoints through the pod's sidecar.

    import ringmaster
    ringmaster.init()
    mean = ringmaster.allreduce(gradient, name="gradient")   # numpy; see ringmaster.tensorflow for TensorFlow

Names and meanings are those of Horovod. Ranks may call collectives in any order; a name says which tensors belong together.
The same program runs alone: without a sidecar it is rank 0 of 1. See docs/clients.md.
"""

from . import _core
from ._basics import (
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    barrier,
    broadcast,
    broadcast_object,
    cross_rank,
    cross_size,
    grouped_allreduce,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    progress,
    rank,
    report,
    shutdown,
    size,
)
from ._core import MismatchError, PeerLostError, RingmasterError

HorovodInternalError = RingmasterError

__version__ = "0.1.0"

__all__ = [
    "Average",
    "HorovodInternalError",
    "Max",
    "Min",
    "MismatchError",
    "PeerLostError",
    "Product",
    "ReduceOp",
    "RingmasterError",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "cross_rank",
    "cross_size",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "progress",
    "rank",
    "report",
    "shutdown",
    "size",
]
