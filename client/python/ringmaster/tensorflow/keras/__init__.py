"""Ringmaster for `tf.keras`: everything of ringmaster.tensorflow, with collectives on values, and callbacks.

    import ringmaster.tensorflow.keras as rm
    rm.init()
    model.compile(optimizer=rm.DistributedOptimizer(optimizer), ...)
    model.fit(..., callbacks=[rm.callbacks.BroadcastGlobalVariablesCallback(0)])
"""

from .. import *  # noqa: F403
from .. import __all__ as _tensorflow_names
from .._training import weights_hash
from . import callbacks

# Of values; after the star, which brings those of graph tensors.
from ... import allgather, allreduce, broadcast  # isort: skip

__all__ = sorted({*_tensorflow_names, "allgather", "allreduce", "broadcast", "callbacks", "weights_hash"})
