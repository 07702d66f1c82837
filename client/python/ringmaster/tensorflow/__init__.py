"""Ringmaster for TensorFlow: collectives on tensors, distributed optimizers and tapes.

    import ringmaster.tensorflow as rm
    rm.init()
    optimizer = rm.DistributedOptimizer(keras.optimizers.Adam(1e-3 * rm.size()))

Names and meanings are those of horovod.tensorflow. Keras callbacks are in ringmaster.tensorflow.keras. See docs/clients.md.
"""

from .. import (
    Average,
    HorovodInternalError,
    Max,
    Min,
    MismatchError,
    PeerLostError,
    Product,
    ReduceOp,
    RingmasterError,
    Sum,
    allgather_object,
    barrier,
    broadcast_object,
    cross_rank,
    cross_size,
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
from .collectives import allgather, allreduce, broadcast, broadcast_variables, grouped_allreduce
from .compression import Compression
from .optimizer import DistributedOptimizer
from .tape import DistributedGradientTape

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
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
    "broadcast_variables",
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
