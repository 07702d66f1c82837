"""The operations of libringmaster_tf.so as functions on tensors, with their gradients."""

import ctypes
import functools
import re
from typing import Any, List, Optional, Sequence

import tensorflow as tf

from .. import _basics, _core
from .._basics import Average, ReduceOp, Sum

REDUCIBLE = (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64)
MOVABLE = REDUCIBLE + (tf.bool,)


@functools.lru_cache(maxsize=None)
def library() -> Any:
    """The loaded operations.

    Raises:
        ImportError: the object cannot be loaded, or this TensorFlow does not take it.
    """
    _core.library()  # first and globally: the operations use this very copy
    path = _core.find("libringmaster_tf.so")
    try:
        module = tf.load_op_library(path)
    except (tf.errors.NotFoundError, OSError) as error:
        raise ImportError(f"{path} cannot be loaded into TensorFlow {tf.__version__}: {error}") from error
    problem = ctypes.CDLL(path).ringmaster_tf_problem
    problem.restype = ctypes.c_char_p
    if problem():
        raise ImportError(f"TensorFlow {tf.__version__} does not take the operations of {path}: {problem().decode()}")
    return module


def op_name(kind: str, tensor: Any, name: Optional[str], ignore_name_scope: bool = False) -> str:
    """What the tensor is called among ranks: the given name; else in a graph a name that the graph makes unique, which is the
    same on all ranks as their graphs are; else counted."""
    if name is not None:
        scope = "" if tf.executing_eagerly() or ignore_name_scope else tf.compat.v1.get_default_graph().get_name_scope()
        return _basics.auto_name(kind, f"{scope}/{name}" if scope else name)
    if tf.executing_eagerly():
        return _basics.auto_name(kind, None)
    source = re.sub(r"[^a-zA-Z0-9_/]", "_", getattr(tensor, "name", "group"))
    graph = tf.compat.v1.get_default_graph()
    return f"{kind}.{getattr(graph, 'name', 'graph')}.{graph.unique_name(f'ringmaster_{kind}_{source}')}"


def dense_allreduce(tensor: tf.Tensor, op: ReduceOp, prescale: float, postscale: float, tensor_name: str) -> tf.Tensor:
    """One all-reduce, whatever the size of the world."""
    return library().ringmaster_allreduce(
        tensor=tensor, tensor_name=tensor_name, reduce_op=op.native, prescale_factor=prescale, postscale_factor=postscale
    )


def dense_group(
    tensors: Sequence[tf.Tensor], op: ReduceOp, prescale: float, postscale: float, tensor_name: str
) -> List[tf.Tensor]:
    """One all-reduce for tensors of one dtype; they travel packed."""
    return library().ringmaster_grouped_allreduce(
        tensors=list(tensors),
        tensor_name=tensor_name,
        reduce_op=op.native,
        prescale_factor=prescale,
        postscale_factor=postscale,
    )


def raw_broadcast(tensor: tf.Tensor, root_rank: int, tensor_name: str) -> tf.Tensor:
    """A broadcast; dtypes that the library does not have travel as bytes."""
    if tensor.dtype not in MOVABLE:
        data = tf.bitcast(tensor, tf.uint8)
        moved = library().ringmaster_broadcast(tensor=data, tensor_name=tensor_name, root_rank=root_rank)
        return tf.bitcast(moved, tensor.dtype)
    return library().ringmaster_broadcast(tensor=tensor, tensor_name=tensor_name, root_rank=root_rank)


def raw_allgather(tensor: tf.Tensor, tensor_name: str) -> tf.Tensor:
    """An all-gather along the first dimension."""
    return library().ringmaster_allgather(tensor=tensor, tensor_name=tensor_name)


# ---- gradients ---------------------------------------------------------------------------------------------------------


def _reduce_of(op: tf.Operation) -> ReduceOp:
    native = op.get_attr("reduce_op")
    found = next(candidate for candidate in _basics.OPS.values() if candidate.native == native)
    if found not in (Average, Sum):
        raise LookupError(f"an all-reduce by {found.name} has no gradient")
    return found


def _scales_of(op: tf.Operation) -> Any:
    return op.get_attr("prescale_factor"), op.get_attr("postscale_factor")


def _name_of(op: tf.Operation) -> str:
    return op.get_attr("tensor_name").decode()


@tf.RegisterGradient("RingmasterAllreduce")
def _allreduce_gradient(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    return dense_allreduce(gradient, _reduce_of(op), *_scales_of(op), f"{_name_of(op)}.gradient")


@tf.RegisterGradient("RingmasterGroupedAllreduce")
def _group_gradient(op: tf.Operation, *gradients: tf.Tensor) -> List[tf.Tensor]:
    return dense_group(gradients, _reduce_of(op), *_scales_of(op), f"{_name_of(op)}.gradient")


@tf.RegisterGradient("RingmasterBroadcast")
def _broadcast_gradient(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    total = dense_allreduce(gradient, Sum, 1.0, 1.0, f"{_name_of(op)}.gradient")
    return total if _basics.rank() == op.get_attr("root_rank") else tf.zeros_like(total)


@tf.RegisterGradient("RingmasterAllgather")
def _allgather_gradient(op: tf.Operation, gradient: tf.Tensor) -> tf.Tensor:
    name = _name_of(op)
    total = dense_allreduce(gradient, Sum, 1.0, 1.0, f"{name}.gradient")
    rows = raw_allgather(tf.shape(op.inputs[0], out_type=tf.int64)[:1], f"{name}.rows")
    begin = tf.reduce_sum(rows[: _basics.rank()])
    return total[begin : begin + rows[_basics.rank()]]
