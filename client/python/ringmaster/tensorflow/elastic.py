"""Elastic training with TensorFlow: states that are saved to memory, taken back after a loss, and given to new ranks.

    state = elastic.TensorFlowKerasState(model, batch=0)

    @elastic.run
    def train(state):
        ...
        state.commit()

See ringmaster.elastic for what a loss does.
"""

import functools
from typing import Any, Callable, List

import numpy as np
import tensorflow as tf

from .. import elastic as _elastic
from ..elastic import ObjectState, sync_root
from ..exceptions import HorovodInternalError
from ._training import build_optimizer, optimizer_variables
from .collectives import broadcast_variables, tf_variable

__all__ = ["TensorFlowKerasState", "TensorFlowState", "run"]

# How the message begins, or whose operation failed.
_OURS = ("Ringmaster: ", "node: ringmaster", "node: Ringmaster")


def _is_ours(error: tf.errors.OpError) -> bool:
    message = error.message or ""
    return any(mark in message for mark in _OURS) or ("Horovod" in message and isinstance(error, tf.errors.UnknownError))


def _translated(func: Callable[..., Any]) -> Callable[..., Any]:
    """Our operations fail with errors of TensorFlow; `run` looks for ours. What is the program's own mistake stays what it is."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except (tf.errors.UnknownError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
            if _is_ours(error):
                raise HorovodInternalError(error.message) from error
            raise

    return wrapper


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the function's first argument is a State; it is called again in each new round, from the last commit."""
    return _elastic.run_fn(_translated(func))


class TensorFlowKerasState(ObjectState):
    """The variables of a Keras model and its optimizer, and plain values by keyword.

    Args:
        model: built; of any Keras.
        optimizer: the model's own when None.
        backend: taken for Horovod's sake.
        **kwargs: what else is to be kept, found as attributes.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any):
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        self.backend = backend
        self._saved_model: List[np.ndarray] = []
        self._saved_optimizer: List[np.ndarray] = []
        super().__init__(**kwargs)
        self._save_variables()

    def _model_variables(self) -> List[Any]:
        return [tf_variable(variable) for variable in self.model.variables]

    def _optimizer_variables(self) -> List[Any]:
        return [] if self.optimizer is None else [tf_variable(variable) for variable in optimizer_variables(self.optimizer)]

    def _save_variables(self) -> None:
        self._saved_model = _values(self._model_variables())
        self._saved_optimizer = _values(self._optimizer_variables())

    def save(self) -> None:
        self._save_variables()
        super().save()

    def restore(self) -> None:
        _assign(self._model_variables(), self._saved_model)
        _assign(self._optimizer_variables(), self._saved_optimizer)
        super().restore()

    @_translated
    def sync(self) -> None:
        build_optimizer(self.model, self.optimizer)  # a rank that has just begun has no slots yet
        # A list each: how many there are must not depend on what a rank has done so far.
        broadcast_variables(self._model_variables(), sync_root(), name="elastic.model")
        broadcast_variables(self._optimizer_variables(), sync_root(), name="elastic.optimizer")
        self._save_variables()
        super().sync()


class TensorFlowState(ObjectState):
    """Variables, of eager mode or of a TF1 session, and plain values by keyword.

    Args:
        variables: all global variables of the default graph when None.
        session: of TF1; the default session when None.
        **kwargs: what else is to be kept, found as attributes.

    Raises:
        ValueError: no variables, in eager mode.
    """

    def __init__(self, variables: Any = None, session: Any = None, **kwargs: Any):
        if variables is None and tf.executing_eagerly():
            raise ValueError("TensorFlowState needs the variables in eager mode")
        self.variables = [tf_variable(v) for v in (tf.compat.v1.global_variables() if variables is None else variables)]
        self.session = session if session is not None or tf.executing_eagerly() else tf.compat.v1.get_default_session()
        self._broadcast: Any = None  # the operation, and whose values it takes
        super().__init__(**kwargs)
        self._saved = self._values()

    def _values(self) -> List[np.ndarray]:
        return _values(self.variables) if self.session is None else self.session.run(self.variables)

    def save(self) -> None:
        self._saved = self._values()
        super().save()

    def restore(self) -> None:
        if self.session is None:
            _assign(self.variables, self._saved)
        else:
            for variable, value in zip(self.variables, self._saved):
                variable.load(value, self.session)
        super().restore()

    @_translated
    def sync(self) -> None:
        root = sync_root()
        if self.session is None:
            broadcast_variables(self.variables, root, name="elastic.variables")
        else:
            if self._broadcast is None or self._broadcast[1] != root:
                with self.session.graph.as_default():
                    self._broadcast = (broadcast_variables(self.variables, root, name="elastic.variables"), root)
            self.session.run(self._broadcast[0])
        self._saved = self._values()
        super().sync()


def _values(variables: List[Any]) -> List[np.ndarray]:
    return [np.array(variable.numpy()) for variable in variables]


def _assign(variables: List[Any], values: List[np.ndarray]) -> None:
    """Sets variables to what was saved. Those that were made since then, slots of an optimizer, begin as such do: with zeros."""
    for index, variable in enumerate(variables):
        variable.assign(values[index] if index < len(values) else tf.zeros(variable.shape, variable.dtype))
