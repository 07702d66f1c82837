"""backward_passes_per_step: gradients of several passes are added up on this rank; only the last pass reduces and applies."""

from typing import Any, Callable, List, Optional, Sequence

import tensorflow as tf

from .collectives import tf_variable


class Aggregation:
    """Adds up gradients.

    Args:
        passes: how many passes make a step.
        average: divide what has been added up by the number of passes.
    """

    def __init__(self, passes: int, average: bool):
        if not isinstance(passes, int) or passes < 1:
            raise ValueError(f"backward_passes_per_step={passes!r}: a positive number of passes")
        self.passes = passes
        self.average = average
        self._counter: Any = None
        self._sums: List[Optional[Any]] = []

    def _variable(self, shape: Any, dtype: Any) -> Any:
        if tf.executing_eagerly():
            return tf.Variable(tf.zeros(shape, dtype), trainable=False)
        # Of a TF1 graph. Local: it is no part of what is saved, and every rank has its own.
        collections = [tf.compat.v1.GraphKeys.LOCAL_VARIABLES]
        return tf.compat.v1.Variable(tf.zeros(shape, dtype), trainable=False, collections=collections, use_resource=True)

    def _build(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        if self._counter is not None:
            if len(gradients) != len(self._sums):
                raise ValueError(f"{len(gradients)} gradients after {len(self._sums)} in the passes before")
            return
        with tf.init_scope():
            self._counter = self._variable([], tf.int64)
            for gradient, variable in zip(gradients, variables):
                shape = tf_variable(variable).shape
                self._sums.append(None if gradient is None else self._variable(shape, gradient.dtype))

    def add(self, gradients: Sequence[Any], variables: Sequence[Any]) -> Any:
        """Adds these gradients.

        Returns:
            (whether this pass is the last of its step, the sums with it; None where there is no gradient), as tensors.
        """
        self._build(gradients, variables)
        due = tf.equal(tf.convert_to_tensor(self._counter.assign_add(1)) % self.passes, 0)
        sums: List[Any] = []
        for total, gradient in zip(self._sums, gradients):
            if total is None or gradient is None:
                sums.append(None if total is None else tf.convert_to_tensor(total))
            else:
                sums.append(tf.convert_to_tensor(total.assign_add(tf.convert_to_tensor(gradient))))
        return due, sums

    def value(self, sums: Sequence[Any]) -> List[Any]:
        """What the step is made of."""
        if not self.average:
            return list(sums)
        return [None if total is None else total / tf.cast(self.passes, total.dtype) for total in sums]

    def reset(self, due: Any) -> List[Any]:
        """Begins anew when the step is done."""
        resets = []
        for total in self._sums:
            if total is not None:
                kept = tf.convert_to_tensor(total)
                resets.append(total.assign(tf.where(due, tf.zeros_like(kept), kept)))
        return resets

    def step(self, gradients: Sequence[Any], variables: Sequence[Any], apply: Callable[[List[Any]], Any], skip: Callable[[], Any]) -> Any:
        """Adds the gradients; then calls `apply` with the sums when this is the last pass of a step, `skip` when it is not."""
        due, sums = self.add(gradients, variables)

        def last() -> tf.Tensor:
            apply(self.value(sums))
            return tf.constant(True)

        def another() -> tf.Tensor:
            skip()
            return tf.constant(False)

        applied = tf.cond(due, last, another)
        self.reset(due)
        return applied
