"""Batch normalization over the batches of all ranks. Imported when it is asked for, because it imports Keras."""

from typing import Any, Tuple

import tensorflow as tf

from .. import _basics
from .._basics import Sum
from . import ops

_Base = tf.keras.layers.BatchNormalization
_OF_KERAS_3 = not hasattr(_Base, "_calculate_mean_and_var")


def _combine(mean: tf.Tensor, variance: tf.Tensor, count: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance of all ranks' values, from those of each rank's."""

    @tf.custom_gradient
    def gathered(row: tf.Tensor) -> Any:
        name = ops.op_name("SyncBatchNormalization", row, None)

        def back(gradient: tf.Tensor) -> tf.Tensor:
            # The sum: what this rank's values do to the losses of all ranks.
            total = ops.dense_allreduce(gradient, Sum, 1.0, 1.0, ops.derived_name(name, "gradient"))
            return total[ops.rank_op()][tf.newaxis]

        return ops.raw_allgather(row, name), back

    channels = tf.shape(mean)[0]
    rows = gathered(tf.concat([mean, variance, [count]], axis=0)[tf.newaxis])
    means, variances, counts = rows[:, :channels], rows[:, channels : 2 * channels], tf.stop_gradient(rows[:, 2 * channels :])
    weights = counts / tf.maximum(tf.reduce_sum(counts), 1.0)
    # A rank without rows has no mean: what it says is not a number, and does not count.
    total = tf.reduce_sum(tf.math.multiply_no_nan(means, weights + tf.zeros_like(means)), axis=0)
    squares = tf.math.multiply_no_nan(variances + tf.square(means - total), weights + tf.zeros_like(means))
    return total, tf.reduce_sum(squares, axis=0)


class SyncBatchNormalization(_Base):
    """keras.layers.BatchNormalization whose mean and variance are those of the batches of all ranks, which may differ in size.

    Args:
        fused: False; a fused kernel could not look at other ranks.
        **kwargs: those of keras.layers.BatchNormalization.

    Raises:
        ValueError: fused, or renorm, which keeps statistics of one rank.
    """

    def __init__(self, fused: bool = False, **kwargs: Any):
        if fused not in (False, None):
            raise ValueError("SyncBatchNormalization does not support fused=True.")
        if kwargs.get("renorm"):
            raise ValueError("SyncBatchNormalization does not support renorm=True.")
        super().__init__(**({} if _OF_KERAS_3 else {"fused": False}), **kwargs)

    def _over_all_ranks(self, mean: tf.Tensor, variance: tf.Tensor, inputs: tf.Tensor, axes: Any) -> Tuple[tf.Tensor, tf.Tensor]:
        if _basics.size() == 1:
            return mean, variance
        dtype = mean.dtype
        count = tf.reduce_prod(tf.gather(tf.shape(inputs), axes))
        wide = dtype if dtype == tf.float64 else tf.float32
        both = _combine(tf.reshape(tf.cast(mean, wide), [-1]), tf.reshape(tf.cast(variance, wide), [-1]), tf.cast(count, wide))
        shaped = [tf.ensure_shape(tf.reshape(tf.cast(flat, dtype), tf.shape(mean)), mean.shape) for flat in both]
        return shaped[0], shaped[1]

    if _OF_KERAS_3:

        def _moments(self, inputs: Any, mask: Any) -> Tuple[Any, Any]:
            if mask is not None:
                raise ValueError("SyncBatchNormalization does not support a mask.")
            mean, variance = super()._moments(inputs, mask)
            return self._over_all_ranks(mean, variance, inputs, self._reduction_axes)

    else:

        def _calculate_mean_and_var(self, inputs: Any, reduction_axes: Any, keep_dims: bool, **options: Any) -> Tuple[Any, Any]:
            mean, variance = super()._calculate_mean_and_var(inputs, reduction_axes, keep_dims, **options)
            return self._over_all_ranks(mean, variance, inputs, reduction_axes)
