"""Elastic training with the `keras` package; see ringmaster.tensorflow.elastic."""

import keras

from ..tensorflow._callbacks import ELASTIC, define
from ..tensorflow.elastic import (
    TensorFlowKerasState,
    run,  # noqa: F401 (part of what is offered)
)


class KerasState(TensorFlowKerasState):
    __doc__ = TensorFlowKerasState.__doc__


globals().update(define(ELASTIC, keras.callbacks, __name__))

__all__ = sorted([*ELASTIC, "KerasState", "run"])
