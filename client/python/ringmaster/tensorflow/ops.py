"""The operations of libringmaster_tf.so as functions on tensors. Their gradients are in `_registered`."""

import ctypes
import functools
import re
from typing import Any, List, Optional, Sequence, Tuple

import tensorflow as tf

from .. import _basics, _core
from .._basics import ReduceOp

REDUCIBLE = (tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float32, tf.float64)
MOVABLE = REDUCIBLE + (tf.bool, tf.uint16, tf.int16)


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
    from . import _registered  # noqa: F401, PLC0415 (it needs the operations' functions)

    return module


def op_name(kind: str, tensor: Any, name: Optional[str], ignore_name_scope: bool = False, process_set: int = 0) -> str:
    """What the tensor is called among ranks: the given name; else in a graph a name that the graph makes unique, which is the
    same on all ranks as their graphs are; else counted."""
    if name is not None:
        scope = "" if tf.executing_eagerly() or ignore_name_scope else tf.compat.v1.get_default_graph().get_name_scope()
        return _basics.auto_name(kind, f"{scope}/{name}" if scope else name)
    if tf.executing_eagerly():
        return _basics.auto_name(kind, None, process_set)
    source = re.sub(r"[^a-zA-Z0-9_/]", "_", getattr(tensor, "name", "group"))
    graph = tf.compat.v1.get_default_graph()
    return f"{kind}.{getattr(graph, 'name', 'graph')}.{graph.unique_name(f'ringmaster_{kind}_{source}')}"


def derived_name(name: str, what: str) -> str:
    """The name of an operation that belongs to another one. In a graph there may be several: they get numbers."""
    derived = f"{name}.{what}"
    return derived if tf.executing_eagerly() else tf.compat.v1.get_default_graph().unique_name(derived)


def _reduces(op: ReduceOp, prescale: float, postscale: float, tensor_name: str, process_set: int) -> Any:
    return {
        "tensor_name": tensor_name,
        "process_set": process_set,
        "reduce_op": op.native,
        "prescale_factor": prescale,
        "postscale_factor": postscale,
    }


def dense_allreduce(tensor: tf.Tensor, op: ReduceOp, prescale: float, postscale: float, tensor_name: str, process_set: int = 0) -> tf.Tensor:
    """One all-reduce, whatever the size of the world."""
    return library().ringmaster_allreduce(tensor=tensor, **_reduces(op, prescale, postscale, tensor_name, process_set))


def dense_group(tensors: Sequence[tf.Tensor], op: ReduceOp, prescale: float, postscale: float, tensor_name: str, process_set: int = 0) -> List[tf.Tensor]:
    """One all-reduce for tensors of one dtype; they travel packed."""
    return library().ringmaster_grouped_allreduce(tensors=list(tensors), **_reduces(op, prescale, postscale, tensor_name, process_set))


def raw_reducescatter(tensor: tf.Tensor, op: ReduceOp, prescale: float, postscale: float, tensor_name: str, process_set: int = 0) -> tf.Tensor:
    """One reduce-scatter along the first dimension."""
    return library().ringmaster_reducescatter(tensor=tensor, **_reduces(op, prescale, postscale, tensor_name, process_set))


def reducescatter_group(
    tensors: Sequence[tf.Tensor], op: ReduceOp, prescale: float, postscale: float, tensor_name: str, process_set: int = 0
) -> List[tf.Tensor]:
    """One reduce-scatter for tensors of one dtype."""
    return library().ringmaster_grouped_reducescatter(tensors=list(tensors), **_reduces(op, prescale, postscale, tensor_name, process_set))


def raw_broadcast(tensor: tf.Tensor, root_rank: int, tensor_name: str, process_set: int = 0) -> tf.Tensor:
    """A broadcast; dtypes that the library does not have travel as bytes."""
    options = {"tensor_name": tensor_name, "root_rank": int(root_rank), "process_set": process_set}
    if tensor.dtype not in MOVABLE:
        moved = library().ringmaster_broadcast(tensor=tf.bitcast(tensor, tf.uint8), **options)
        return tf.bitcast(moved, tensor.dtype)
    return library().ringmaster_broadcast(tensor=tensor, **options)


def raw_allgather(tensor: tf.Tensor, tensor_name: str, process_set: int = 0) -> tf.Tensor:
    """An all-gather along the first dimension."""
    return library().ringmaster_allgather(tensor=tensor, tensor_name=tensor_name, process_set=process_set)


def allgather_group(tensors: Sequence[tf.Tensor], tensor_name: str, process_set: int = 0) -> List[tf.Tensor]:
    """One all-gather for tensors of any dtypes."""
    return library().ringmaster_grouped_allgather(tensors=list(tensors), tensor_name=tensor_name, process_set=process_set)


def raw_alltoall(tensor: tf.Tensor, splits: Any, tensor_name: str, process_set: int = 0) -> Tuple[tf.Tensor, tf.Tensor]:
    """An all-to-all. No splits at all: every rank gets as many rows."""
    splits = tf.zeros([0], tf.int64) if splits is None else tf.reshape(tf.cast(splits, tf.int64), [-1])
    result = library().ringmaster_alltoall(tensor=tensor, splits=splits, tensor_name=tensor_name, process_set=process_set)
    return result.output, result.received_splits


# ---- numbers that are asked for when the graph runs --------------------------------------------------------------------


def size_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """The number of ranks in a process set, asked for at each execution: in an elastic job it may change."""
    return library().ringmaster_size(process_set=process_set_id, name=name)


def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """1 when this process is in the set, else 0, asked for at each execution."""
    return library().ringmaster_process_set_included(process_set=process_set_id, name=name)


def local_size_op(name: Optional[str] = None) -> tf.Tensor:
    """The number of ranks of this pod or machine, asked for at each execution."""
    return library().ringmaster_local_size(name=name)


def rank_op(name: Optional[str] = None) -> tf.Tensor:
    """This process's rank, asked for at each execution."""
    return library().ringmaster_rank(name=name)


def local_rank_op(name: Optional[str] = None) -> tf.Tensor:
    """The rank among those of this pod or machine, asked for at each execution."""
    return library().ringmaster_local_rank(name=name)


def set_rank_op(process_set_id: int) -> tf.Tensor:
    """This process's place in a process set, asked for at each execution."""
    return library().ringmaster_rank(process_set=process_set_id)
