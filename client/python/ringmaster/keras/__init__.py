"""Ringmaster for the `keras` package (Keras 3 on TensorFlow): everything of ringmaster.tensorflow, with collectives on values, and callbacks.

    import ringmaster.keras as rm
    rm.init()
    model.compile(optimizer=rm.DistributedOptimizer(optimizer), ...)
    model.fit(..., callbacks=[rm.callbacks.BroadcastGlobalVariablesCallback(0)])

Names and meanings are those of horovod.keras. See docs/clients.md.
"""

import keras as _keras_package

from ..tensorflow import *  # noqa: F403
from ..tensorflow import __all__ as _tensorflow_names
from ..tensorflow._keras import keras_distributed_optimizer as DistributedOptimizer
from ..tensorflow._keras import load_model_with as _load_model_with
from ..tensorflow._training import weights_hash
from . import callbacks, elastic

# Of values; after the star, which brings those of graph tensors.
from ..tensorflow._keras import allgather, allreduce, broadcast, broadcast_global_variables, reducescatter  # isort: skip

load_model = _load_model_with(_keras_package.models.load_model)

__all__ = sorted({*_tensorflow_names, "callbacks", "elastic", "load_model", "weights_hash"})
