"""The callbacks as classes of one Keras or another: what they do is in `_training`, the base class is the Keras's."""

from typing import Any, Dict, Tuple

from . import _training

CALLBACKS: Dict[str, type] = {
    "BroadcastGlobalVariablesCallback": _training.BroadcastGlobalVariables,
    "MetricAverageCallback": _training.MetricAverage,
    "LearningRateScheduleCallback": _training.LearningRateSchedule,
    "LearningRateWarmupCallback": _training.LearningRateWarmup,
    "ProgressCallback": _training.Progress,
    "CheckpointCallback": _training.Checkpoint,
}


class CommitState:
    """Commits an elastic state every so many batches and at the end of every epoch.

    Args:
        state: an elastic.KerasState.
        batches_per_commit: how many batches may be lost.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1):
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit={batches_per_commit!r}: a positive number")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def commit(self) -> None:
        """Commits the state."""
        self.state.commit()

    def on_train_begin(self, logs: _training.Logs = None) -> None:
        self.batches_remaining = self.batches_per_commit  # on all ranks alike, whatever was before

    def on_batch_end(self, batch: int, logs: _training.Logs = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: _training.Logs = None) -> None:
        self.commit()


class UpdateBatchState:
    """Keeps `state.batch`: the batch of the epoch that was trained last; 0 when an epoch has ended.

    Args:
        state: an elastic.KerasState with a value of that name.
    """

    params: Dict[str, Any]

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self.steps_per_epoch: Any = None

    def on_train_begin(self, logs: _training.Logs = None) -> None:
        self.steps_per_epoch = None

    def on_epoch_begin(self, epoch: int, logs: _training.Logs = None) -> None:
        if self.params.get("steps"):
            if self.steps_per_epoch is None:
                self.steps_per_epoch = self.params["steps"]
            self.params["steps"] = self.steps_per_epoch - self.state.batch  # what is left of an epoch that was begun before

    def on_batch_end(self, batch: int, logs: _training.Logs = None) -> None:
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: _training.Logs = None) -> None:
        self.state.batch = 0


class UpdateEpochState:
    """Keeps `state.epoch`: how many epochs have been trained, over all rounds. `fit` is called with `epochs=total - state.epoch`.

    Args:
        state: an elastic.KerasState with a value of that name.
    """

    def __init__(self, state: Any):
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: _training.Logs = None) -> None:
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: _training.Logs = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1


ELASTIC: Dict[str, type] = {
    "CommitStateCallback": CommitState,
    "UpdateBatchStateCallback": UpdateBatchState,
    "UpdateEpochStateCallback": UpdateEpochState,
}


def define(cores: Dict[str, type], keras_callbacks: Any, module: str) -> Dict[str, type]:
    """A class for each of `cores`, which is a callback of that Keras and is found in `module`."""
    base = keras_callbacks.Callback
    return {name: type(name, (core, base), {"__doc__": core.__doc__, "__module__": module}) for name, core in cores.items()}


def best_model_checkpoint(keras_callbacks: Any, module: str) -> type:
    """BestModelCheckpoint for that Keras."""
    base = keras_callbacks.ModelCheckpoint

    def __init__(
        self: Any,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Any = None,
    ) -> None:
        base.__init__(
            self,
            filepath or ("best.weights.h5" if save_weights_only else "best.keras"),
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )

    doc = """Saves the model whenever it is better than all before. Give it to one rank alone.

    Args:
        monitor, verbose, save_weights_only, mode, save_freq: those of ModelCheckpoint.
        filepath: where to; may also be set later, as the attribute of this name.
    """
    bases: Tuple[type, ...] = (base,)
    return type("BestModelCheckpoint", bases, {"__init__": __init__, "__doc__": doc, "__module__": module})
