"""Elastic training with the Keras that TensorFlow has; see ringmaster.tensorflow.elastic."""

import tensorflow as tf

from .._callbacks import ELASTIC, define
from ..elastic import TensorFlowKerasState, run


class KerasState(TensorFlowKerasState):
    __doc__ = TensorFlowKerasState.__doc__


globals().update(define(ELASTIC, tf.keras.callbacks, __name__))

__all__ = sorted([*ELASTIC, "KerasState", "run"])
