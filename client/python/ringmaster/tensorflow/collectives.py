"""Collectives on tensors, in eager mode and in graphs."""

from typing import Any, Dict, Iterable, List, Optional, Sequence, Type, Union

import tensorflow as tf

from .. import _basics
from .._basics import Average, ReduceOp, Sum
from . import ops
from .compression import Compression, Compressor

Value = Union[tf.Tensor, tf.IndexedSlices]


def _reduce_slices(slices: tf.IndexedSlices, op: ReduceOp, name: str) -> tf.IndexedSlices:
    """Values and indices of all ranks, end to end: what adds up adds up where they are applied."""
    if op not in (Average, Sum):
        raise NotImplementedError(f"IndexedSlices can be reduced by Average and Sum, not by {op.name}; use sparse_as_dense=True")
    values = ops.raw_allgather(slices.values, f"{name}.values")
    indices = ops.raw_allgather(slices.indices, f"{name}.indices")
    if op == Average:
        values = values / tf.cast(_basics.size(), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
) -> Value:
    """Reduces a tensor over all ranks; every rank gets the same bits.

    Args:
        tensor: tensor, variable or value of uint8, int8, int32, int64, float16, bfloat16, float32, float64, of the same shape and
            dtype on all ranks; or IndexedSlices, which become two all-gathers (Average and Sum only).
        average: Horovod's older way to say op: True is Average, False is Sum.
        device_dense, device_sparse: taken for Horovod's sake; the tensors travel through host memory.
        compression: Compression.none or Compression.fp16.
        op: Average (default; floating types only), Sum, Min, Max or Product.
        prescale_factor, postscale_factor: multiplied in before and after (floating types only).
        name: the same on all ranks; made from the graph, or counted, when None.
        ignore_name_scope: in a graph, do not put the name scope before name.

    Returns:
        A tensor of the shape and dtype of `tensor` (or IndexedSlices).

    Raises:
        ValueError: op and average are both given, or op is none of ours.
        tf.errors.InvalidArgumentError: ranks disagree on what this name is.
        tf.errors.UnknownError: a rank is gone.
    """
    operation = _basics.which_op(op, average)
    if isinstance(tensor, tf.IndexedSlices):
        if prescale_factor != 1.0 or postscale_factor != 1.0:
            raise NotImplementedError("prescale_factor and postscale_factor are not supported for IndexedSlices")
        slices_name = ops.op_name("allreduce", tensor.values, name, ignore_name_scope)
        return _reduce_slices(tensor, operation, slices_name)
    tensor = tf.convert_to_tensor(tensor)
    small, context = compression.compress(tensor)
    tensor_name = ops.op_name("allreduce", tensor, name, ignore_name_scope)
    reduced = ops.dense_allreduce(small, operation, prescale_factor, postscale_factor, tensor_name)
    return compression.decompress(reduced, context)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    ignore_name_scope: bool = False,
    name: Optional[str] = None,
) -> List[Value]:
    """Reduces several tensors as one request per dtype: they travel packed. IndexedSlices among them go one by one.

    Arguments and errors are those of `allreduce`.

    Returns:
        The reduced tensors in the order of `tensors`.
    """
    operation = _basics.which_op(op, average)
    values = [t if isinstance(t, tf.IndexedSlices) else tf.convert_to_tensor(t) for t in tensors]
    if not values:
        return []
    first = values[0].values if isinstance(values[0], tf.IndexedSlices) else values[0]
    base = ops.op_name("grouped_allreduce", first, name, ignore_name_scope)
    results: List[Any] = [None] * len(values)
    contexts: List[Any] = [None] * len(values)
    by_dtype: Dict[Any, List[int]] = {}
    for index, value in enumerate(values):
        if isinstance(value, tf.IndexedSlices):
            if prescale_factor != 1.0 or postscale_factor != 1.0:
                raise NotImplementedError("prescale_factor and postscale_factor are not supported for IndexedSlices")
            results[index] = _reduce_slices(value, operation, f"{base}.{index}")
            continue
        values[index], contexts[index] = compression.compress(value)
        by_dtype.setdefault(values[index].dtype, []).append(index)
    for dtype, indices in by_dtype.items():
        group = [values[i] for i in indices]
        reduced = ops.dense_group(group, operation, prescale_factor, postscale_factor, f"{base}.{dtype.name}")
        for index, tensor in zip(indices, reduced):
            results[index] = compression.decompress(tensor, contexts[index])
    return results


def allgather(tensor: Any, name: Optional[str] = None, ignore_name_scope: bool = False) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension, in rank order.

    Args:
        tensor: of at least one dimension; the first may differ among ranks, the others and the dtype may not.
        name, ignore_name_scope: as in `allreduce`.

    Returns:
        A tensor of shape (sum of the first dimensions, ...).

    Raises:
        tf.errors.InvalidArgumentError: a scalar, or ranks disagree on dtype or the other dimensions.
        tf.errors.UnknownError: a rank is gone.
    """
    tensor = tf.convert_to_tensor(tensor)
    return ops.raw_allgather(tensor, ops.op_name("allgather", tensor, name, ignore_name_scope))


def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None, ignore_name_scope: bool = False) -> tf.Tensor:
    """Gives every rank the root's tensor.

    Args:
        tensor: of any dtype but string; of the same shape and dtype on all ranks.
        root_rank: whose values count.
        name, ignore_name_scope: as in `allreduce`.

    Raises:
        tf.errors.InvalidArgumentError: ranks disagree on shape, dtype or root, or root_rank is no rank.
        tf.errors.UnknownError: a rank is gone.
    """
    tensor = tf.convert_to_tensor(tensor)
    return ops.raw_broadcast(tensor, root_rank, ops.op_name("broadcast", tensor, name, ignore_name_scope))


def tf_variable(variable: Any) -> Any:
    """The tf.Variable of a Keras 3 variable; anything else as it is."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def broadcast_variables(variables: Iterable[Any], root_rank: int, name: Optional[str] = None) -> None:
    """Sets variables to the root's values. Those of one dtype travel as one tensor.

    Args:
        variables: tf.Variables or Keras variables, in the same order on all ranks.
        root_rank: whose values count.
        name: the same on all ranks; counted when None.

    Raises:
        tf.errors.InvalidArgumentError: ranks have other variables.
        tf.errors.UnknownError: a rank is gone.
    """
    base = ops.op_name("broadcast_variables", None, name)
    by_dtype: Dict[Any, List[Any]] = {}
    for variable in map(tf_variable, variables):
        by_dtype.setdefault(variable.dtype.base_dtype, []).append(variable)
    for dtype, group in by_dtype.items():
        flat = tf.concat([tf.reshape(tf.convert_to_tensor(v), [-1]) for v in group], axis=0)
        received = ops.raw_broadcast(flat, root_rank, f"{base}.{dtype.name}")
        parts = tf.split(received, [v.shape.num_elements() for v in group])
        for variable, part in zip(group, parts):
            variable.assign(tf.reshape(part, variable.shape))
