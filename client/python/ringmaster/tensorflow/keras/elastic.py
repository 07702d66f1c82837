"""Elastic training with the Keras that TensorFlow has; see ringmaster.tensorflow.elastic."""

import tensorflow as tf

from .._callbacks import ELASTIC, define
from ..elastic import (
    TensorFlowKerasState,
    run,  # noqa: F401 (part of what is offered)
)


class KerasState(TensorFlowKerasState):
    __doc__ = TensorFlowKerasState.__doc__


globals().update(define(ELASTIC, tf.keras.callbacks, __name__))

__all__ = sorted([*ELASTIC, "KerasState", "run"])
