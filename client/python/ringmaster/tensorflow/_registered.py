"""Gradients of the operations. They are Horovod's, whose users scale their losses by them: what is gathered, broadcast or
reduced gets back the average over the ranks."""

from typing import Any, List, Tuple

import tensorflow as tf

from .. import _basics
from .._basics import Average, ReduceOp, Sum
from . import ops


def _reduce_of(op: tf.Operation) -> ReduceOp:
    native = op.get_attr("reduce_op")
    found = next((candidate for candidate in _basics.OPS.values() if candidate.native == native), None)
    if found not in (Average, Sum, _basics.Adasum):
        raise LookupError(f"a reduction by {found.name if found else native} has no gradient")
    return found


def _scales_of(op: tf.Operation) -> Tuple[float, float]:
    return op.get_attr("prescale_factor"), op.get_attr("postscale_factor")


def _set_of(op: tf.Operation) -> int:
    return op.get_attr("process_set")


def _derived(op: tf.Operation, what: str) -> str:
    return ops.derived_name(op.get_attr("tensor_name").decode(), what)


@tf.RegisterGradient("RingmasterAllreduce")
def _allreduce(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    return ops.dense_allreduce(gradient, _reduce_of(op), *_scales_of(op), _derived(op, "gradient"), _set_of(op))


@tf.RegisterGradient("RingmasterGroupedAllreduce")
def _grouped_allreduce(op: tf.Operation, *gradients: tf.Tensor) -> List[tf.Tensor]:
    return ops.dense_group(gradients, _reduce_of(op), *_scales_of(op), _derived(op, "gradient"), _set_of(op))


@tf.RegisterGradient("RingmasterBroadcast")
def _broadcast(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    mean = ops.dense_allreduce(gradient, Average, 1.0, 1.0, _derived(op, "gradient"), _set_of(op))
    return tf.where(tf.equal(ops.rank_op(), op.get_attr("root_rank")), mean, tf.zeros_like(mean))


def _own_rows(total: tf.Tensor, rows: tf.Tensor, rank: tf.Tensor) -> tf.Tensor:
    begin = tf.reduce_sum(rows[:rank])
    return total[begin : begin + rows[rank]]


@tf.RegisterGradient("RingmasterAllgather")
def _allgather(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    mean = ops.dense_allreduce(gradient, Average, 1.0, 1.0, _derived(op, "gradient"), _set_of(op))
    rows = ops.raw_allgather(tf.shape(op.inputs[0], out_type=tf.int64)[:1], _derived(op, "rows"), _set_of(op))
    return _own_rows(mean, rows, ops.set_rank_op(_set_of(op)))


@tf.RegisterGradient("RingmasterGroupedAllgather")
def _grouped_allgather(op: tf.Operation, *gradients: tf.Tensor) -> List[Any]:
    mine = tf.stack([tf.shape(value, out_type=tf.int64)[0] for value in op.inputs])
    rows = ops.raw_allgather(mine[tf.newaxis], _derived(op, "rows"), _set_of(op))
    rank = ops.set_rank_op(_set_of(op))
    results: List[Any] = []
    for index, gradient in enumerate(gradients):
        if gradient is None or not gradient.dtype.is_floating:
            results.append(None)
            continue
        mean = ops.dense_allreduce(gradient, Average, 1.0, 1.0, _derived(op, f"gradient.{index}"), _set_of(op))
        results.append(_own_rows(mean, rows[:, index], rank))
    return results


def _scattered(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    factor = tf.constant(_scales_of(op)[0] * _scales_of(op)[1], gradient.dtype)
    if _reduce_of(op) == Sum:
        factor *= tf.cast(ops.size_op(_set_of(op)), gradient.dtype)
    return gradient * factor


@tf.RegisterGradient("RingmasterReducescatter")
def _reducescatter(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    return ops.raw_allgather(_scattered(op, gradient), _derived(op, "gradient"), _set_of(op))


@tf.RegisterGradient("RingmasterGroupedReducescatter")
def _grouped_reducescatter(op: tf.Operation, *gradients: tf.Tensor) -> List[tf.Tensor]:
    return ops.allgather_group([_scattered(op, gradient) for gradient in gradients], _derived(op, "gradient"), _set_of(op))


@tf.RegisterGradient("RingmasterAlltoall")
def _alltoall(op: tf.Operation, gradient: tf.Tensor, _: Any) -> List[Any]:
    return [ops.raw_alltoall(gradient, op.outputs[1], _derived(op, "gradient"), _set_of(op))[0], None]


for _kind in ("Join", "Size", "Rank", "ProcessSetIncluded", "LocalSize", "LocalRank"):
    tf.no_gradient(f"Ringmaster{_kind}")
