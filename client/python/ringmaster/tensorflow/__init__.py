"""Ringmaster for TensorFlow: collectives on tensors, distributed optimizers and tapes.

    import ringmaster.tensorflow as rm
    rm.init()
    optimizer = rm.DistributedOptimizer(keras.optimizers.Adam(1e-3 * rm.size()))

Names and meanings are those of horovod.tensorflow. Keras callbacks are in ringmaster.tensorflow.keras. See docs/clients.md.
"""

import importlib
from typing import Any

from .. import barrier
from .._common import *  # noqa: F403
from .._common import __all__ as _common
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
    *_common,
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
    "RingAllReduce",  # noqa: F405 (of _LAZY)
    "Strategy",  # noqa: F405 (of _LAZY)
    "SyncBatchNormalization",  # noqa: F405 (of _LAZY)
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
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
