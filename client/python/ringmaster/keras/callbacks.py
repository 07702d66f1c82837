"""Callbacks for the `keras` package (Keras 3 on TensorFlow)."""

import keras

from ..tensorflow._callbacks import CALLBACKS, best_model_checkpoint, define
from ..tensorflow._training import Position  # noqa: F401 (part of what is offered)

globals().update(define(CALLBACKS, keras.callbacks, __name__))
BestModelCheckpoint = best_model_checkpoint(keras.callbacks, __name__)

__all__ = sorted([*CALLBACKS, "BestModelCheckpoint", "Position"])
