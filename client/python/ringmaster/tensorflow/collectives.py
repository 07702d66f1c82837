"""Collectives on tensors, in eager mode and in graphs."""

from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Type, Union

import tensorflow as tf

from .. import _basics, _ops
from .._basics import Average, ReduceOp, Sum
from ..process_sets import ProcessSet, global_process_set, set_number
from . import ops
from .compression import Compression, Compressor

Value = Union[tf.Tensor, tf.IndexedSlices]


def _reduce_slices(slices: tf.IndexedSlices, op: ReduceOp, name: str, number: int) -> tf.IndexedSlices:
    """Values and indices of all ranks, end to end: what adds up adds up where they are applied."""
    if op not in (Average, Sum):
        raise NotImplementedError(f"IndexedSlices can be reduced by Average and Sum, not by {op.name}; use sparse_as_dense=True")
    values, indices = ops.allgather_group([slices.values, slices.indices], f"{name}.slices", number)
    if op == Average:
        values = values / tf.cast(ops.size_op(number), values.dtype)
    return tf.IndexedSlices(values, indices, dense_shape=slices.dense_shape)


def _no_scales(prescale_factor: float, postscale_factor: float) -> None:
    if prescale_factor != 1.0 or postscale_factor != 1.0:
        raise NotImplementedError("prescale_factor and postscale_factor are not supported for IndexedSlices")


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
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Value:
    """Reduces a tensor over all ranks of a process set; every one gets the same bits.

    Args:
        tensor: tensor, variable or value of uint8, int8, int32, int64, float16, bfloat16, float32, float64 (bool: Min and Max only),
            of the same shape and dtype on all ranks; or IndexedSlices, which become an all-gather (Average and Sum only).
        average: Horovod's older way to say op: True is Average, False is Sum.
        device_dense, device_sparse: taken for Horovod's sake; the tensors travel through host memory.
        compression: Compression.none, Compression.fp16, or a Compressor.
        op: Average (default; of integers without the fraction), Sum, Min, Max, Product or Adasum (floating types).
        prescale_factor, postscale_factor: multiplied in before and after.
        name: the same on all ranks; made from the graph, or counted, when None.
        process_set: whose ranks take part.
        ignore_name_scope: in a graph, do not put the name scope before name.

    Returns:
        A tensor of the shape and dtype of `tensor` (or IndexedSlices).

    Raises:
        ValueError: op and average are both given, or op is none of ours.
        tf.errors.FailedPreconditionError: ranks disagree on what this name is.
        tf.errors.UnknownError: a rank is gone.
    """
    operation = _basics.which_op(op, average)
    number = set_number(process_set)
    if isinstance(tensor, tf.IndexedSlices):
        _no_scales(prescale_factor, postscale_factor)
        slices_name = ops.op_name("allreduce", tensor.values, name, ignore_name_scope, number)
        return _reduce_slices(tensor, operation, slices_name, number)
    tensor = tf.convert_to_tensor(tensor)
    small, context = compression.compress(tensor)
    tensor_name = ops.op_name("allreduce", tensor, name, ignore_name_scope, number)
    reduced = ops.dense_allreduce(small, operation, prescale_factor, postscale_factor, tensor_name, number)
    return compression.decompress(reduced, context)


def _by_dtype(values: Sequence[Any], one_by_one: bool = False) -> List[Tuple[str, List[int]]]:
    """[(what to call the group, its indices)] of the dense tensors."""
    groups: Dict[str, List[int]] = {}
    for index, value in enumerate(values):
        if not isinstance(value, tf.IndexedSlices):
            groups.setdefault(str(index) if one_by_one else value.dtype.name, []).append(index)
    return list(groups.items())


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: Optional[str] = None,
) -> List[Value]:
    """Reduces several tensors as one request per dtype: they travel packed. IndexedSlices among them go one by one.

    Arguments and errors are those of `allreduce`.

    Returns:
        The reduced tensors in the order of `tensors`.
    """
    operation = _basics.which_op(op, average)
    number = set_number(process_set)
    values = [t if isinstance(t, tf.IndexedSlices) else tf.convert_to_tensor(t) for t in tensors]
    if not values:
        return []
    first = values[0].values if isinstance(values[0], tf.IndexedSlices) else values[0]
    base = ops.op_name("grouped_allreduce", first, name, ignore_name_scope, number)
    results: List[Any] = [None] * len(values)
    contexts: List[Any] = [None] * len(values)
    for index, value in enumerate(values):
        if isinstance(value, tf.IndexedSlices):
            _no_scales(prescale_factor, postscale_factor)
            results[index] = _reduce_slices(value, operation, f"{base}.{index}", number)
        else:
            values[index], contexts[index] = compression.compress(value)
    # Adasum looks at whole tensors: packed ones would be one.
    for what, indices in _by_dtype(values, one_by_one=operation == _basics.Adasum):
        group = [values[i] for i in indices]
        reduced = ops.dense_group(group, operation, prescale_factor, postscale_factor, f"{base}.{what}", number)
        for index, tensor in zip(indices, reduced):
            results[index] = compression.decompress(tensor, contexts[index])
    return results


def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Type[Compressor] = Compression.none,
    op: int = Average,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor:
    """Reduces a tensor over all ranks of a process set and gives each its part of the rows: d0 // n, one more for the first d0 % n
    ranks. Arguments and errors are those of `allreduce`; the tensor has at least one dimension, and there is no Adasum.

    Returns:
        This rank's rows.
    """
    operation, number = _basics.which_op(op, None), set_number(process_set)
    tensor = tf.convert_to_tensor(tensor)
    small, context = compression.compress(tensor)
    tensor_name = ops.op_name("reducescatter", tensor, name, ignore_name_scope, number)
    rows = ops.raw_reducescatter(small, operation, prescale_factor, postscale_factor, tensor_name, number)
    return compression.decompress(rows, context)


def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: Optional[str] = None,
) -> List[tf.Tensor]:
    """`reducescatter` of several tensors, one request per dtype.

    Returns:
        This rank's rows of each, in the order of `tensors`.
    """
    operation, number = _basics.which_op(op, None), set_number(process_set)
    values = [tf.convert_to_tensor(tensor) for tensor in tensors]
    if not values:
        return []
    base = ops.op_name("grouped_reducescatter", values[0], name, ignore_name_scope, number)
    small, contexts = zip(*(compression.compress(value) for value in values))
    results: List[Any] = [None] * len(values)
    for what, indices in _by_dtype(small):
        group = [small[i] for i in indices]
        scattered = ops.reducescatter_group(group, operation, prescale_factor, postscale_factor, f"{base}.{what}", number)
        for index, rows in zip(indices, scattered):
            results[index] = compression.decompress(rows, contexts[index])
    return results


def allgather(
    tensor: Any,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension, in rank order.

    Args:
        tensor: of at least one dimension; the first may differ among ranks, the others and the dtype may not. Also bool, int16, uint16.
        name, ignore_name_scope, process_set: as in `allreduce`.

    Returns:
        A tensor of shape (sum of the first dimensions, ...).

    Raises:
        tf.errors.InvalidArgumentError: a scalar.
        tf.errors.FailedPreconditionError: ranks disagree on dtype or the other dimensions.
        tf.errors.UnknownError: a rank is gone.
    """
    tensor, number = tf.convert_to_tensor(tensor), set_number(process_set)
    return ops.raw_allgather(tensor, ops.op_name("allgather", tensor, name, ignore_name_scope, number), number)


def grouped_allgather(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> List[tf.Tensor]:
    """`allgather` of several tensors, of any dtypes, negotiated as one.

    Returns:
        The gathered tensors in the order of `tensors`.
    """
    values, number = [tf.convert_to_tensor(tensor) for tensor in tensors], set_number(process_set)
    if not values:
        return []
    tensor_name = ops.op_name("grouped_allgather", values[0], name, ignore_name_scope, number)
    return list(ops.allgather_group(values, tensor_name, number))


def broadcast(
    tensor: Any,
    root_rank: int,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> tf.Tensor:
    """Gives every rank of a process set the root's tensor.

    Args:
        tensor: of any dtype but string; of the same shape and dtype on all ranks.
        root_rank: whose values count; a rank of the job, also in a process set.
        name, ignore_name_scope, process_set: as in `allreduce`.

    Raises:
        tf.errors.InvalidArgumentError: root_rank is not in the set.
        tf.errors.FailedPreconditionError: ranks disagree on shape, dtype or root.
        tf.errors.UnknownError: a rank is gone.
    """
    tensor, number = tf.convert_to_tensor(tensor), set_number(process_set)
    return ops.raw_broadcast(tensor, root_rank, ops.op_name("broadcast", tensor, name, ignore_name_scope, number), number)


def alltoall(
    tensor: Any,
    splits: Any = None,
    name: Optional[str] = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Union[tf.Tensor, Tuple[tf.Tensor, tf.Tensor]]:
    """Sends rows to every rank of a process set and receives theirs.

    Args:
        tensor: of at least one dimension; the first may differ among ranks, the others and the dtype may not.
        splits: how many rows go to each rank; None: the same number to all.
        name, ignore_name_scope, process_set: as in `allreduce`.

    Returns:
        The rows that came, in rank order; with splits also how many came from each rank (int32).

    Raises:
        tf.errors.InvalidArgumentError: splits that do not fit the rows or the ranks.
        tf.errors.FailedPreconditionError: ranks disagree on dtype or on the other dimensions.
        tf.errors.UnknownError: a rank is gone.
    """
    tensor, number = tf.convert_to_tensor(tensor), set_number(process_set)
    tensor_name = ops.op_name("alltoall", tensor, name, ignore_name_scope, number)
    if splits is not None:
        splits = tf.convert_to_tensor(splits)
        if splits.shape.rank == 1 and splits.shape[0] == 0:
            raise ValueError("splits is empty: give a number for every rank, or None")
    received, received_splits = ops.raw_alltoall(tensor, splits, tensor_name, number)
    return received if splits is None else (received, received_splits)


def join() -> tf.Tensor:
    """This rank has no more data: collectives of the others go on without it. Done when all ranks have joined.

    Returns:
        The rank that joined last, the same on all ranks.
    """
    return ops.library().ringmaster_join()


# ---- variables ---------------------------------------------------------------------------------------------------------


def tf_variable(variable: Any) -> Any:
    """The tf.Variable of a Keras 3 variable; anything else as it is."""
    value = getattr(variable, "value", None)
    return value if isinstance(value, tf.Variable) else variable


def _assign(variables: Sequence[Any], root_rank: int, name: str, number: int) -> List[Any]:
    """Assigns the root's values; variables of one dtype and known shapes travel as one tensor."""
    groups: Dict[str, List[int]] = {}
    for index, variable in enumerate(variables):
        known = variable.shape.is_fully_defined()
        groups.setdefault(variable.dtype.base_dtype.name if known else f"variable.{index}", []).append(index)
    done: List[Any] = [None] * len(variables)
    for what, indices in groups.items():
        values = [tf.convert_to_tensor(variables[i]) for i in indices]
        flat = values[0] if len(indices) == 1 else tf.concat([tf.reshape(value, [-1]) for value in values], axis=0)
        received = ops.raw_broadcast(flat, root_rank, f"{name}.{what}", number)
        sizes = [variables[i].shape.num_elements() for i in indices]
        parts = [received] if len(indices) == 1 else tf.split(received, sizes)
        for index, value, part in zip(indices, values, parts):
            done[index] = variables[index].assign(tf.reshape(part, tf.shape(value)))
    return done


def broadcast_(variables: Iterable[Any], root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """Sets variables to the root's values.

    Args:
        variables: tf.Variables or Keras variables, in the same order on all ranks.
        root_rank: whose values count; a rank of the job, also in a process set.
        name: the same on all ranks; made from the graph, or counted, when None.
        process_set: whose ranks take part.

    Returns:
        The variables; in a TF1 graph, what has to be run for it.

    Raises:
        tf.errors.FailedPreconditionError: ranks have other variables.
        tf.errors.UnknownError: a rank is gone.
    """
    listed, number = [tf_variable(variable) for variable in variables], set_number(process_set)
    if not listed:
        return []
    done = _assign(listed, root_rank, ops.op_name("broadcast_variables", None, name, process_set=number), number)
    return listed if tf.executing_eagerly() else done


def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
    name: Optional[str] = None,
) -> Any:
    """`broadcast_` of all variables, as one operation.

    Args:
        variables, root_rank, process_set, name: as in `broadcast_`.
        inplace: taken for Horovod's sake; variables are always set where they are.

    Returns:
        In a graph the operation; None in eager mode.
    """
    done = broadcast_(variables, root_rank, name, process_set)
    return None if tf.executing_eagerly() else tf.group(*done)


# ---- objects -----------------------------------------------------------------------------------------------------------


def broadcast_object(
    obj: Any = None,
    root_rank: int = 0,
    session: Any = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """ringmaster.broadcast_object; the session is taken for Horovod's sake: no graph is needed."""
    return _ops.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session: Any = None, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """`broadcast_object` with everything but the object filled in."""
    return lambda obj: broadcast_object(obj, root_rank, session, name, process_set)


def allgather_object(obj: Any, session: Any = None, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """ringmaster.allgather_object; the session is taken for Horovod's sake: no graph is needed."""
    return _ops.allgather_object(obj, name, process_set)
