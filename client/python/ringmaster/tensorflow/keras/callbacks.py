"""Callbacks for the Keras that TensorFlow has: `tf.keras` (Keras 3, or tf_keras with TF_USE_LEGACY_KERAS=1)."""

import tensorflow as tf

from .._callbacks import CALLBACKS, best_model_checkpoint, define
from .._training import Position  # noqa: F401 (part of what is offered)

globals().update(define(CALLBACKS, tf.keras.callbacks, __name__))
BestModelCheckpoint = best_model_checkpoint(tf.keras.callbacks, __name__)

__all__ = sorted([*CALLBACKS, "BestModelCheckpoint", "Position"])
