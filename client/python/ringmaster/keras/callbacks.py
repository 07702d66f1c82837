"""Callbacks for the `keras` package (Keras 3 on TensorFlow)."""

import keras

from ..tensorflow import _training
from ..tensorflow._training import Position

_Callback = keras.callbacks.Callback


class BroadcastGlobalVariablesCallback(_training.BroadcastGlobalVariables, _Callback):
    __doc__ = _training.BroadcastGlobalVariables.__doc__


class MetricAverageCallback(_training.MetricAverage, _Callback):
    __doc__ = _training.MetricAverage.__doc__


class LearningRateScheduleCallback(_training.LearningRateSchedule, _Callback):
    __doc__ = _training.LearningRateSchedule.__doc__


class LearningRateWarmupCallback(_training.LearningRateWarmup, _Callback):
    __doc__ = _training.LearningRateWarmup.__doc__


class ProgressCallback(_training.Progress, _Callback):
    __doc__ = _training.Progress.__doc__


class CheckpointCallback(_training.Checkpoint, _Callback):
    __doc__ = _training.Checkpoint.__doc__


__all__ = [
    "BroadcastGlobalVariablesCallback",
    "CheckpointCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "Position",
    "ProgressCallback",
]
