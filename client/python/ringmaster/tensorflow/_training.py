"""What the Keras callbacks do. Both Kerases share it: Keras 3 and tf_keras give the base class (see keras/callbacks.py)."""

import hashlib
import logging
import math
import time
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

import numpy as np
import tensorflow as tf

from .. import _basics, _ops, checkpoint
from .._cadence import Cadence
from .collectives import broadcast_variables, tf_variable
from .optimizer import build_variables

log = logging.getLogger("ringmaster")

Logs = Optional[Dict[str, Any]]


class Position(NamedTuple):
    """Where training goes on: `step` steps are done, `step_in_epoch` of them in epoch `epoch`."""

    step: int
    epoch: int
    step_in_epoch: int


def optimizer_variables(optimizer: Any) -> List[Any]:
    """The variables of an optimizer, whichever Keras it is of."""
    variables = getattr(optimizer, "variables", [])
    return list(variables() if callable(variables) else variables)


def state_of(model: Any) -> Dict[str, Any]:
    """Everything that training changes: the variables of model and optimizer, by names that are the same on all ranks."""
    state: Dict[str, Any] = {}
    groups = {"model": list(model.variables)}
    if getattr(model, "optimizer", None) is not None:
        groups["optimizer"] = optimizer_variables(model.optimizer)
    for group, variables in groups.items():
        for index, variable in enumerate(variables):
            name = getattr(variable, "path", None) or variable.name
            state[f"{group}/{index:04d}/{name}"] = variable
    return state


def build_optimizer(model: Any, optimizer: Any = None) -> None:
    """Makes the optimizer's variables, so that they can be restored before the first step."""
    optimizer = getattr(model, "optimizer", None) if optimizer is None else optimizer
    if optimizer is None or not getattr(model, "built", True):
        return
    build_variables(optimizer, model.trainable_variables)


def weights_hash(model: Any) -> str:
    """SHA-256 over all weights of a model, in hexadecimal: equal on two ranks if every bit is.

    Args:
        model: a built Keras model.
    """
    digest = hashlib.sha256()
    for variable in model.variables:
        value = np.ascontiguousarray(variable.numpy() if hasattr(variable, "numpy") else variable)
        digest.update(f"{value.dtype.name}{value.shape}".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def get_value(variable: Any) -> float:
    """A hyperparameter: a variable or a number."""
    return float(variable.numpy()) if hasattr(variable, "numpy") else float(variable)


class BroadcastGlobalVariables:
    """Gives every rank the variables of one, so that all begin alike.

    Happens when training begins, for what is built by then, and after the first batch for what that has made.

    Args:
        root_rank: whose values count.
        device: taken for Horovod's sake.
        local_variables: variables that every rank keeps to itself.
    """

    model: Any

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None):
        super().__init__()
        self.root_rank = root_rank
        self.local_variables = [id(tf_variable(variable)) for variable in local_variables or []]
        self._sent: set = set()
        self._done = False

    def _broadcast(self) -> None:
        variables = [tf_variable(variable) for variable in state_of(self.model).values()]
        fresh = [v for v in variables if id(v) not in self._sent and id(v) not in self.local_variables]
        self._sent.update(id(v) for v in fresh)
        if fresh and _basics.size() > 1:
            broadcast_variables(fresh, self.root_rank)

    def on_train_begin(self, logs: Logs = None) -> None:
        if not self._done and getattr(self.model, "built", True):
            build_optimizer(self.model)
            self._broadcast()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if not self._done:
            self._broadcast()
            self._done = True


class MetricAverage:
    """Averages the metrics of an epoch over all ranks, in place: put it before callbacks that act on metrics.

    Args:
        device: taken for Horovod's sake.
    """

    def __init__(self, device: str = ""):
        super().__init__()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if not logs or _basics.size() == 1:
            return
        names = sorted(name for name, value in logs.items() if np.ndim(value) == 0)
        values = np.array([float(logs[name]) for name in names], np.float64)
        for name, value in zip(names, _ops.allreduce(values, name=f"metrics.{','.join(names)}")):
            logs[name] = float(value)


class LearningRateSchedule:
    """Sets the learning rate to initial_lr * multiplier(epoch).

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a function of the epoch, or a number.
        start_epoch, end_epoch: when it acts; end_epoch None: to the end.
        staircase: once an epoch; else at every batch, with epoch + batch / steps_per_epoch.
        momentum_correction: scales the momentum for the batch in which the rate changes, where the optimizer's momentum is a
            variable.
        steps_per_epoch: taken from the training when None.
    """

    model: Any
    params: Dict[str, Any]

    def __init__(
        self,
        initial_lr: float,
        multiplier: Union[float, Callable[[float], float]],
        start_epoch: int = 0,
        end_epoch: Optional[int] = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
    ):
        super().__init__()
        self.initial_lr = initial_lr
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._restore_momentum: Optional[float] = None
        self._multiplier = multiplier

    def multiplier(self, epoch: float) -> float:
        """What the learning rate is multiplied by at this epoch."""
        return self._multiplier(epoch) if callable(self._multiplier) else self._multiplier

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        old = get_value(optimizer.learning_rate)
        new = self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate.assign(new)
        momentum = getattr(optimizer, "momentum", None)
        if self.momentum_correction and hasattr(momentum, "assign") and old != 0:
            self._restore_momentum = get_value(momentum)
            momentum.assign(self._restore_momentum * new / old)

    def on_train_begin(self, logs: Logs = None) -> None:
        if self.initial_lr is None:
            self.initial_lr = get_value(self.model.optimizer.learning_rate)
        if not self.staircase and self.steps_per_epoch is None:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError("Could not autodetect the number of steps per epoch; give steps_per_epoch to the callback.")

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if self.current_epoch < self.start_epoch or (self.end_epoch is not None and self.current_epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / float(self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(self.current_epoch)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self._restore_momentum is not None:
            self.model.optimizer.momentum.assign(self._restore_momentum)
            self._restore_momentum = None

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if logs is not None:
            logs["lr"] = get_value(self.model.optimizer.learning_rate)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from initial_lr / size to initial_lr over the first epochs (Goyal et al., arXiv:1706.02677).

    Args:
        initial_lr: the rate after warm-up: that of one rank times size.
        warmup_epochs: how many epochs it takes.
        momentum_correction, steps_per_epoch: as in LearningRateScheduleCallback.
        verbose: 1 prints a line when warm-up is over.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: Optional[int] = None,
        verbose: int = 0,
    ):
        def multiplier(epoch: float) -> float:
            epoch += 1.0 / (self.steps_per_epoch or 1)  # so that it ends on the round figure
            return 1.0 / _basics.size() * (epoch * (_basics.size() - 1) / warmup_epochs + 1)

        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=0,
            end_epoch=math.ceil(warmup_epochs),
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.end_epoch is not None and epoch == self.end_epoch - 1 and self.verbose > 0:
            rate = get_value(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}.")


class Progress:
    """Tells the job how training goes: step, loss, step time and metrics; at the end the accuracy and a hash of all weights.

    The step is the optimizer's count, so it goes on where a restored checkpoint was.

    Args:
        total_steps: how many steps there will be; from epochs and steps per epoch of `fit` when None.
        hash_weights: report `weights_hash` at the end of training.
    """

    model: Any
    params: Dict[str, Any]

    def __init__(self, total_steps: Optional[int] = None, hash_weights: bool = True):
        super().__init__()
        self.total_steps = total_steps
        self.hash_weights = hash_weights
        self._logs: Dict[str, float] = {}
        self._batch_began: Optional[float] = None

    def _step(self) -> int:
        return int(get_value(self.model.optimizer.iterations))

    def on_train_begin(self, logs: Logs = None) -> None:
        total = self.total_steps
        if total is None and self.params.get("epochs") and self.params.get("steps"):
            total = self.params["epochs"] * self.params["steps"]
        _basics.report(step=self._step(), total_steps=total)

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._batch_began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        milliseconds = None if self._batch_began is None else 1000 * (time.perf_counter() - self._batch_began)
        _basics.progress()
        _basics.report(step=self._step(), loss=(logs or {}).get("loss"), step_ms=milliseconds)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._logs = {name: float(value) for name, value in (logs or {}).items() if np.ndim(value) == 0}
        _basics.report(metrics={**self._logs, "epoch": epoch + 1})

    def on_train_end(self, logs: Logs = None) -> None:
        metrics: Dict[str, Any] = {}
        for name in ("val_accuracy", "accuracy", "acc"):
            if name in self._logs:
                metrics["accuracy"] = self._logs[name]
                break
        if self.hash_weights:
            metrics["weights_hash"] = weights_hash(self.model)
        _basics.report(metrics=metrics)


def resplit_position(extras: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """`extra` of a checkpoint of another number of ranks: the data of an epoch is dealt out among the ranks, so the batches that all of
    them had trained are so many steps of today's ranks. Rounded down: a few batches may be trained twice, none is left out."""
    extra = checkpoint.keep_common(extras)
    done, ranks = int(extra.get("step_in_epoch", 0)), _basics.size()
    extra["step_in_epoch"] = done * len(extras) // ranks
    if done > 0 and _basics.rank() == 0:
        log.info("step %d in the epoch of %d ranks is step %d of %d", done, len(extras), extra["step_in_epoch"], ranks)
    return extra


class Checkpoint:
    """Saves the model and its optimizer every so often, and resumes from the last committed save.

    Call `restore(model)` before `fit` and start the data where it says: then no step is trained twice and none is skipped.

        checkpoint = CheckpointCallback()
        position = checkpoint.restore(model)
        for epoch in range(position.epoch, epochs):
            skip = position.step_in_epoch if epoch == position.epoch else 0
            model.fit(batches(epoch, skip), initial_epoch=epoch, epochs=epoch + 1, callbacks=[checkpoint])

    When `restore` was not called it happens as training begins; a begun epoch is then trained again from its start.

    Args:
        every_steps: save after each so many steps; from RINGMASTER_CHECKPOINT_EVERY_STEPS when None; 0: not by steps.
        every_seconds: save when so much time has passed; from RINGMASTER_CHECKPOINT_EVERY_SECONDS when None; 0: not by time.
        agree_every: ranks agree every so many steps on whether time has passed or the job has asked for a save.
        extra: a function that gives this rank's own values to keep, anything that JSON can hold.

    Attributes:
        position: where training went on; None before `restore`.
        restored_extra: what `extra` gave when the restored checkpoint was saved.
    """

    model: Any

    def __init__(
        self,
        every_steps: Optional[int] = None,
        every_seconds: Optional[float] = None,
        agree_every: int = 10,
        extra: Optional[Callable[[], Mapping[str, Any]]] = None,
    ):
        super().__init__()
        self._cadence = Cadence(every_steps, every_seconds, agree_every)
        self.extra = extra
        self.position: Optional[Position] = None
        self.restored_extra: Dict[str, Any] = {}
        self._explicit = False
        self._epoch = 0
        self._base = 0  # steps of this epoch that an earlier process has done
        self._offset = 0

    def restore(self, model: Any) -> Position:
        """Sets model and optimizer to the last committed state, if there is one. Every rank calls it.

        Args:
            model: built and compiled, the same on all ranks.

        Returns:
            Where to go on; Position(0, 0, 0) without a checkpoint. After a change of the number of ranks `step_in_epoch` is counted in
            steps of today's: as many batches as all ranks together had trained, dealt out anew and rounded down.

        Raises:
            ValueError: the model is not built, or the checkpoint is one of another model.
            RingmasterError: the checkpoint is damaged.
        """
        position = self._restore(model)
        self._explicit = True
        return position

    def _restore(self, model: Any) -> Position:
        if self.position is not None:
            return self.position
        found = checkpoint.restore(resplit_position)
        if found is None:
            self.position = Position(0, 0, 0)
            return self.position
        if not getattr(model, "built", True):
            raise ValueError("the model must be built before a checkpoint is restored; give it an Input or call model.build")
        build_optimizer(model)
        state = state_of(model)
        missing, unknown = sorted(set(state) - set(found.tensors)), sorted(set(found.tensors) - set(state))
        if missing or unknown:
            raise ValueError(
                f"the checkpoint of step {found.step} is one of another model: "
                + "; ".join(f"{text} {names[0]!r}" for text, names in (("no", missing), ("unknown", unknown)) if names)
            )
        for name, variable in state.items():
            variable = tf_variable(variable)
            if tuple(variable.shape) != found.tensors[name].shape:
                raise ValueError(
                    f"the checkpoint of step {found.step} is one of another model: {name!r} has shape "
                    f"{found.tensors[name].shape}, the model's {tuple(variable.shape)}"
                )
            variable.assign(tf.constant(found.tensors[name], dtype=variable.dtype))
        own = found.extra.get("user", {})
        self.restored_extra = own if isinstance(own, dict) else {}
        self.position = Position(found.step, int(found.extra.get("epoch", 0)), int(found.extra.get("step_in_epoch", 0)))
        return self.position

    def save(self, model: Any = None) -> bool:
        """Saves now. Every rank calls it after the same step.

        Returns:
            Whether it was staged; what stands in the way of a save is logged and does not stop training.

        Raises:
            PeerLostError: the sidecar is gone.
        """
        model = model or self.model
        step = int(get_value(model.optimizer.iterations))
        tensors = {name: tf_variable(variable).numpy() for name, variable in state_of(model).items()}
        extra: Dict[str, Any] = {"epoch": self._epoch, "step_in_epoch": self._offset}
        if self.extra is not None:
            extra["user"] = dict(self.extra())
        return self._cadence.save(step, lambda: checkpoint.save(step, tensors, extra))

    def on_train_begin(self, logs: Logs = None) -> None:
        first = self.position is None
        position = self._restore(self.model)
        if first and position.epoch > 0 and hasattr(self.model, "_initial_epoch"):
            self.model._initial_epoch = position.epoch  # as Keras's own BackupAndRestore does
        self._cadence.begin()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch
        begun = self._explicit and self.position is not None and epoch == self.position.epoch
        self._base = self.position.step_in_epoch if begun and self.position is not None else 0
        self._offset = self._base

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._offset = self._base + batch + 1
        step = int(get_value(self.model.optimizer.iterations))
        if self._cadence.due(step):
            self.save()
