"""Ringmaster for `tf.keras`: everything of ringmaster.tensorflow, with collectives on values, and callbacks.

    import ringmaster.tensorflow.keras as rm
    rm.init()
    model.compile(optimizer=rm.DistributedOptimizer(optimizer), ...)
    model.fit(..., callbacks=[rm.callbacks.BroadcastGlobalVariablesCallback(0)])

Names and meanings are those of horovod.tensorflow.keras. See docs/clients.md.
"""

import tensorflow as _tf

from .. import *  # noqa: F403
from .. import __all__ as _tensorflow_names
from .._keras import keras_distributed_optimizer as DistributedOptimizer
from .._keras import load_model_with as _load_model_with
from .._training import weights_hash
from . import callbacks, elastic

# Of values; after the star, which brings those of graph tensors.
from .._keras import allgather, allreduce, broadcast, broadcast_global_variables, reducescatter  # isort: skip

load_model = _load_model_with(_tf.keras.models.load_model)

__all__ = sorted({*_tensorflow_names, "callbacks", "elastic", "load_model", "weights_hash"})
