"""init, rank, size and the collectives on numpy arrays and Python objects."""

import atexit
import ctypes
import json
import math
import numbers
import os
import pickle
import sys
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from . import _core


class ReduceOp(int):
    """How values of the ranks become one. `Average` and the others are the instances."""

    def __new__(cls, value: int, name: str, native: int) -> "ReduceOp":
        self = super().__new__(cls, value)
        self.name = name
        self.native = native  # enum rm_op
        return self

    def __repr__(self) -> str:
        return f"ringmaster.{self.name}"

    def __reduce__(self) -> Tuple[type, Tuple[int, str, int]]:
        return (ReduceOp, (int(self), self.name, self.native))


# The numbers are Horovod's (2 is Adasum, which does not exist here); the last figure is enum rm_op.
Average = ReduceOp(0, "Average", 2)
Sum = ReduceOp(1, "Sum", 1)
Min = ReduceOp(3, "Min", 3)
Max = ReduceOp(4, "Max", 4)
Product = ReduceOp(5, "Product", 5)
OPS = {int(op): op for op in (Average, Sum, Min, Max, Product)}

DTYPES: Dict[str, int] = {
    "uint8": 1,
    "int8": 2,
    "int32": 3,
    "int64": 4,
    "float16": 5,
    "bfloat16": 6,
    "float32": 7,
    "float64": 8,
    "bool": 9,
}

_NO_DONE = _core.DONE_FN()
_counters: Dict[str, int] = {}
_counters_lock = threading.Lock()
_registered_exit = False


def _framework() -> bytes:
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        return f"tensorflow {getattr(tensorflow, '__version__', '')}".encode()[:31]
    return f"numpy {np.__version__}".encode()[:31]


def init(comm: Optional[Sequence[int]] = None, process_sets: Any = None) -> None:
    """Connects this process to its sidecar. Call it once, before anything else; calling it again does nothing.

    Without a sidecar (`RINGMASTER_SOCKET` is not set) this process is a world of its own: rank 0 of 1, and every collective
    gives back what it was given.

    Args:
        comm: None, or all ranks in order. A world of fewer ranks is made by starting fewer.
        process_sets: None; sets of ranks are not there yet.

    Raises:
        RingmasterError: the sidecar cannot be reached or refuses this process.
    """
    global _registered_exit
    if process_sets is not None:
        raise ValueError("process_sets is not supported: all ranks take part in every collective")
    lib = _core.library()
    _core.check(lib.rm_init(_framework()))
    if comm is not None and list(comm) != list(range(lib.rm_size())):
        raise ValueError(f"comm={list(comm)!r} is not supported: only None, or all of the {lib.rm_size()} ranks in order")
    if not _registered_exit:
        atexit.register(shutdown)
        _registered_exit = True


def shutdown() -> None:
    """Leaves the sidecar; what was reported is sent first, what is in flight ends with an error. `init` may follow."""
    with _counters_lock:
        _counters.clear()
    _core.library().rm_shutdown()


def is_initialized() -> bool:
    """Whether `init` went well in this process. False in a forked child of the one that called it."""
    return bool(_core.library().rm_is_initialized())


def _known(value: int) -> int:
    if value < 0:
        raise ValueError("Ringmaster has not been initialized; use ringmaster.init().")
    return value


def rank() -> int:
    """This process's rank, 0..size-1. Raises ValueError before `init`."""
    return _known(_core.library().rm_rank())


def size() -> int:
    """The number of ranks. Raises ValueError before `init`."""
    return _known(_core.library().rm_size())


def local_rank() -> int:
    """The rank among those of this pod or machine. Raises ValueError before `init`."""
    return _known(_core.library().rm_local_rank())


def local_size() -> int:
    """The number of ranks of this pod or machine. Raises ValueError before `init`."""
    return _known(_core.library().rm_local_size())


def cross_rank() -> int:
    """The index of this pod among those that have a rank with our local rank. Raises ValueError before `init`."""
    return rank() // local_size()


def cross_size() -> int:
    """The number of pods that have a rank with our local rank. Raises ValueError before `init`."""
    return (size() + local_size() - 1) // local_size()


def is_homogeneous() -> bool:
    """Whether every pod has the same number of ranks."""
    return size() % local_size() == 0


# ---- names and operations ----------------------------------------------------------------------------------------------


def auto_name(kind: str, name: Optional[str]) -> str:
    """`allreduce.<name>`, or `allreduce.noname.<n>` counted per process: the same on all ranks if they make the same calls."""
    if name is not None:
        return f"{kind}.{name}"
    with _counters_lock:
        number = _counters.get(kind, 0)
        _counters[kind] = number + 1
    return f"{kind}.noname.{number}"


def which_op(op: Optional[int], average: Optional[bool]) -> ReduceOp:
    """The operation that `op` or Horovod's older `average` ask for; Average when neither does.

    Raises:
        ValueError: both are given, or op is none of ours.
    """
    if op is not None:
        if average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        if int(op) not in OPS:
            raise ValueError(f"op={op!r} is not supported; use Average, Sum, Min, Max or Product")
        return OPS[int(op)]
    return Sum if average is False else Average


def dtype_code(dtype: Any) -> int:
    """enum rm_dtype of a numpy dtype.

    Raises:
        ValueError: the library has no such type.
    """
    name = np.dtype(dtype).name
    if name not in DTYPES:
        raise ValueError(f"dtype {name} is not supported; supported are {', '.join(DTYPES)}")
    return DTYPES[name]


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)


_abandoned: List[Any] = []  # buffers of requests that nobody waits for any more, but which are still in flight


def _wait(handle: ctypes.c_uint64, keep: Any) -> None:
    """Waits in slices, so that Ctrl-C is heard. `keep` are the buffers, which must outlive the request."""
    lib = _core.library()
    try:
        code = _core.TIMEOUT
        while code == _core.TIMEOUT:
            code = lib.rm_wait(handle, 200)
    except BaseException:
        _abandoned.append(keep)
        lib.rm_release(handle)
        raise
    _core.check(code)


# ---- collectives on arrays ---------------------------------------------------------------------------------------------


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> np.ndarray:
    """Reduces an array over all ranks; every rank gets the same bits.

    Args:
        tensor: array or scalar of uint8, int8, int32, int64, float16, bfloat16, float32, float64 (bool: Min and Max only); the
            same shape and dtype on all ranks.
        average: Horovod's older way to say op: True is Average, False is Sum.
        name: the same on all ranks; counted when None.
        op: Average (default; floating types only), Sum, Min, Max or Product.
        prescale_factor, postscale_factor: multiplied in before and after (floating types only).

    Returns:
        A new array of tensor's shape and dtype.

    Raises:
        ValueError: op or dtype that does not exist.
        MismatchError: ranks disagree on what this name is.
        PeerLostError: a rank is gone.
    """
    array = _array(tensor)
    operation = which_op(op, average)
    out = np.empty_like(array)
    handle = ctypes.c_uint64()
    lib = _core.library()
    _core.check(
        lib.rm_allreduce(
            auto_name("allreduce", name).encode(),
            array.ctypes.data,
            out.ctypes.data,
            array.size,
            dtype_code(array.dtype),
            operation.native,
            prescale_factor,
            postscale_factor,
            _NO_DONE,
            None,
            ctypes.byref(handle),
        )
    )
    _wait(handle, (array, out))
    return out


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[np.ndarray]:
    """Reduces several arrays in one request per dtype: they travel packed. Arguments and errors are those of `allreduce`.

    Returns:
        New arrays, in the order of `tensors`.
    """
    arrays = [_array(tensor) for tensor in tensors]
    outs = [np.empty_like(array) for array in arrays]
    operation = which_op(op, average)
    base = auto_name("grouped_allreduce", name)
    lib = _core.library()
    by_dtype: Dict[int, List[int]] = {}
    for index, array in enumerate(arrays):
        by_dtype.setdefault(dtype_code(array.dtype), []).append(index)
    handles = []
    failure: Optional[BaseException] = None
    for dtype, indices in sorted(by_dtype.items()):
        count = len(indices)
        handle = ctypes.c_uint64()
        code = lib.rm_allreduce_group(
            f"{base}.{dtype}".encode(),
            count,
            (ctypes.c_void_p * count)(*[arrays[i].ctypes.data for i in indices]),
            (ctypes.c_void_p * count)(*[outs[i].ctypes.data for i in indices]),
            (ctypes.c_uint64 * count)(*[arrays[i].size for i in indices]),
            dtype,
            operation.native,
            prescale_factor,
            postscale_factor,
            _NO_DONE,
            None,
            ctypes.byref(handle),
        )
        if code < 0:
            failure = _core.error(code)
            break
        handles.append(handle)
    for handle in handles:  # all of them: their buffers are in use until then
        try:
            _wait(handle, (arrays, outs))
        except _core.RingmasterError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return outs


def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None) -> np.ndarray:
    """Gives every rank the root's array.

    Args:
        tensor: array or scalar of any supported dtype, bool included; the same shape and dtype on all ranks.
        root_rank: whose values count.
        name: the same on all ranks; counted when None.

    Returns:
        A new array of tensor's shape and dtype.

    Raises:
        MismatchError: ranks disagree on shape, dtype or root.
        PeerLostError: a rank is gone.
    """
    array = _array(tensor)
    out = np.empty_like(array)
    handle = ctypes.c_uint64()
    _core.check(
        _core.library().rm_broadcast(
            auto_name("broadcast", name).encode(),
            array.ctypes.data,
            out.ctypes.data,
            array.size,
            dtype_code(array.dtype),
            int(root_rank),
            _NO_DONE,
            None,
            ctypes.byref(handle),
        )
    )
    _wait(handle, (array, out))
    return out


def allgather(tensor: Any, name: Optional[str] = None) -> np.ndarray:
    """Concatenates the ranks' arrays along the first dimension, in rank order.

    Args:
        tensor: array of at least one dimension; the first may differ among ranks, the others and the dtype may not.
        name: the same on all ranks; counted when None.

    Returns:
        A new array of shape (sum of the first dimensions, ...).

    Raises:
        ValueError: tensor is a scalar.
        MismatchError: ranks disagree on dtype or on the other dimensions.
        PeerLostError: a rank is gone.
    """
    array = _array(tensor)
    if array.ndim == 0:
        raise ValueError("allgather needs an array of at least one dimension; a scalar has none to concatenate along")
    row = math.prod(array.shape[1:])
    handle = ctypes.c_uint64()
    lib = _core.library()
    _core.check(
        lib.rm_allgather(
            auto_name("allgather", name).encode(),
            array.ctypes.data,
            array.shape[0],
            row,
            dtype_code(array.dtype),
            _NO_DONE,
            None,
            ctypes.byref(handle),
        )
    )
    try:
        _wait(handle, array)
        data, count = ctypes.c_void_p(), ctypes.c_uint64()
        _core.check(lib.rm_result(handle, ctypes.byref(data), ctypes.byref(count)))
        out = np.empty((count.value // row if row else 0,) + array.shape[1:], array.dtype)
        if count.value:
            ctypes.memmove(out.ctypes.data, data, out.nbytes)
        return out
    finally:
        lib.rm_release(handle)


def barrier(name: Optional[str] = None) -> None:
    """Returns when every rank has called it.

    Raises:
        PeerLostError: a rank is gone.
    """
    # An all-reduce of one byte is a barrier too, and it is waited for in slices, so that Ctrl-C is heard.
    allreduce(np.zeros(1, np.uint8), name=f"barrier.{name}" if name else auto_name("barrier", None), op=Max)


# ---- objects -----------------------------------------------------------------------------------------------------------


def broadcast_object(obj: Any = None, root_rank: int = 0, name: Optional[str] = None) -> Any:
    """Gives every rank the root's object, by pickle: only for ranks that trust each other, as those of one job do.

    Args:
        obj: anything that pickles; only the root's counts.
        root_rank: whose object it is.
        name: the same on all ranks; counted when None.

    Returns:
        The object; on the root the very one that was given.

    Raises:
        PeerLostError: a rank is gone.
    """
    base = auto_name("broadcast_object", name)
    mine = rank() == root_rank
    data = np.frombuffer(pickle.dumps(obj), np.uint8) if mine else np.zeros(0, np.uint8)
    length = int(broadcast(np.array([data.size], np.int64), root_rank, f"{base}.length")[0])
    if not mine:
        data = np.zeros(length, np.uint8)
    data = broadcast(data, root_rank, f"{base}.data")
    return obj if mine else pickle.loads(data.tobytes())


def allgather_object(obj: Any, name: Optional[str] = None) -> List[Any]:
    """The objects of all ranks, in rank order, by pickle: only for ranks that trust each other, as those of one job do.

    Raises:
        PeerLostError: a rank is gone.
    """
    base = auto_name("allgather_object", name)
    data = np.frombuffer(pickle.dumps(obj), np.uint8)
    lengths = allgather(np.array([data.size], np.int64), f"{base}.length")
    everything = allgather(data, f"{base}.data")
    ends = np.cumsum(lengths)
    return [pickle.loads(everything[end - length : end].tobytes()) for end, length in zip(ends, lengths)]


# ---- progress ----------------------------------------------------------------------------------------------------------


def _json_value(value: Any) -> Union[str, bool, None, int, float]:
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else str(number)


def report(
    step: Optional[int] = None,
    total_steps: Optional[int] = None,
    loss: Optional[float] = None,
    step_ms: Optional[float] = None,
    metrics: Optional[Mapping[str, Any]] = None,
) -> None:
    """Tells the job how training goes: for its status, the live view and the report. Cheap; what comes faster than ten times a
    second is merged.

    Args:
        step: the number of training steps done.
        total_steps: how many there will be.
        loss: of the last step; one that is not finite is shown among the metrics.
        step_ms: how long the last step took.
        metrics: up to 32 numbers or short texts by name.

    Raises:
        RingmasterError: a text that is too long, or too many metrics.
    """
    numbers_given = {"step": step, "total_steps": total_steps, "loss": loss, "step_ms": step_ms}
    message: Dict[str, Any] = {}
    texts = {key: _json_value(value) for key, value in (metrics or {}).items()}
    for key, value in numbers_given.items():
        if value is None:
            continue
        plain = _json_value(value)
        if isinstance(plain, str):
            texts[key] = plain
        else:
            message[key] = plain
    if texts:
        message["metrics"] = texts
    if message:
        _core.check(_core.library().rm_report(json.dumps(message).encode()))


def progress() -> None:
    """One training step went by: what hang detection looks at."""
    _core.library().rm_progress()


def environment_number(name: str) -> Optional[float]:
    """A positive number of the job's environment, None when it is not set or 0."""
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else 0.0
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a number") from None
    return value if value > 0 else None
