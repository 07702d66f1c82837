"""The collectives on numpy arrays and Python objects."""

import ctypes
import pickle
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import _basics, _core, _submit
from ._basics import Average, auto_name, dtype_code, rank, which_op
from ._submit import Buffer, Handle
from .process_sets import ProcessSet, global_process_set, set_number

try:
    import cloudpickle as _pickler  # functions and classes of the main program travel too
except ImportError:
    _pickler = pickle


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)


def _buffer(array: np.ndarray, out: Optional[np.ndarray] = None) -> Buffer:
    return Buffer(array.ctypes.data, 0 if out is None else out.ctypes.data, array.shape, dtype_code(array.dtype))


def _need_rows(kind: str, array: np.ndarray) -> None:
    if array.ndim == 0:
        raise ValueError(f"{kind} needs an array of at least one dimension; a scalar has no rows")


def _result(handle: Handle, like: np.ndarray, index: int = 0) -> np.ndarray:
    address, rows = handle.output(index)
    out = np.empty((rows,) + like.shape[1:], like.dtype)
    if out.nbytes:
        ctypes.memmove(out.ctypes.data, address, out.nbytes)
    return out


class Pending:
    """What the *_async functions give: for `poll` and `synchronize`."""

    def __init__(self, handles: List[Handle], finish: Callable[[List[Handle]], Any]):
        self._handles, self._finish = handles, finish

    def poll(self) -> bool:
        return all(handle.poll() for handle in self._handles)

    def synchronize(self) -> Any:
        failure: Optional[BaseException] = None
        try:
            for handle in self._handles:  # all of them: their buffers are in use until then
                try:
                    handle.wait()
                except _core.RingmasterError as error:
                    failure = failure or error
            if failure is not None:
                raise failure
            return self._finish(self._handles)
        finally:
            for handle in self._handles:
                handle.release()


def poll(handle: Pending) -> bool:
    """Whether an asynchronous collective is done, well or not."""
    return handle.poll()


def synchronize(handle: Pending) -> Any:
    """Waits for an asynchronous collective.

    Returns:
        What the synchronous one returns.

    Raises:
        RingmasterError: how it ended.
    """
    return handle.synchronize()


# ---- all-reduce --------------------------------------------------------------------------------------------------------


def allreduce_async(
    tensor: Any,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: Optional[str] = None,
) -> Pending:
    """`allreduce` that returns at once; see `synchronize`. The array must not change until then."""
    array = _array(tensor)
    out = np.empty_like(array)
    handle = _submit.submit(
        _submit.ALLREDUCE,
        auto_name("allreduce", name, set_number(process_set)),
        [_buffer(array, out)],
        op=which_op(op, average).native,
        prescale=prescale_factor,
        postscale=postscale_factor,
        process_set=set_number(process_set),
        keep=(array, out),
        wire=_submit.which_wire(wire),
    )
    return Pending([handle], lambda _: out)


def allreduce(
    tensor: Any,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    wire: Optional[str] = None,
) -> np.ndarray:
    """Reduces an array over all ranks of a process set; every one gets the same bits.

    Args:
        tensor: array or scalar of uint8, int8, int32, int64, float16, bfloat16, float32, float64 (bool: Min and Max only); the
            same shape and dtype on all ranks.
        average: Horovod's older way to say op: True is Average, False is Sum.
        name: the same on all ranks; counted when None.
        op: Average (default; of integers without the fraction), Sum, Min, Max, Product or Adasum (floating types).
        prescale_factor, postscale_factor: multiplied in before and after (integers: computed in double, without the fraction).
        process_set: whose ranks take part.
        wire: in which form the data travel between ranks: "plain"; "float16", "bfloat16" or "int8", for sums and averages of float32 in half or
            a quarter of the bytes; "exact", for those of float16 and bfloat16, rounded only once. None: as the job is set up.

    Returns:
        A new array of tensor's shape and dtype.

    Raises:
        ValueError: op or dtype that does not exist; a name that is in flight.
        MismatchError: ranks disagree on what this name is.
        PeerLostError: a rank is gone.
    """
    return allreduce_async(tensor, average, name, op, prescale_factor, postscale_factor, process_set, wire).synchronize()


def grouped_allreduce_async(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Pending:
    """`grouped_allreduce` that returns at once; see `synchronize`."""
    arrays = [_array(tensor) for tensor in tensors]
    outs = [np.empty_like(array) for array in arrays]
    operation, number = which_op(op, average), set_number(process_set)
    handles, _ = _submit.submit_by_dtype(
        _submit.ALLREDUCE,
        auto_name("grouped_allreduce", name, number),
        [_buffer(array, out) for array, out in zip(arrays, outs)],
        apart=operation == _basics.Adasum,
        op=operation.native,
        prescale=prescale_factor,
        postscale=postscale_factor,
        process_set=number,
        keep=(arrays, outs),
    )
    return Pending(handles, lambda _: outs)


def grouped_allreduce(
    tensors: Sequence[Any],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[np.ndarray]:
    """Reduces several arrays in one request per dtype: they are negotiated as one and travel packed. Arguments and errors are those
    of `allreduce`.

    Returns:
        New arrays, in the order of `tensors`.
    """
    return grouped_allreduce_async(tensors, average, name, op, prescale_factor, postscale_factor, process_set).synchronize()


# ---- broadcast, all-gather ---------------------------------------------------------------------------------------------


def broadcast_async(
    tensor: Any, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Pending:
    """`broadcast` that returns at once; see `synchronize`."""
    array = _array(tensor)
    out = np.empty_like(array)
    handle = _submit.submit(
        _submit.BROADCAST,
        auto_name("broadcast", name, set_number(process_set)),
        [_buffer(array, out)],
        root=int(root_rank),
        process_set=set_number(process_set),
        keep=(array, out),
    )
    return Pending([handle], lambda _: out)


def broadcast(
    tensor: Any, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> np.ndarray:
    """Gives every rank of a process set the root's array.

    Args:
        tensor: array or scalar of any supported dtype, bool, int16 and uint16 included; the same shape and dtype on all ranks.
        root_rank: whose values count; a rank of the job, also in a process set.
        name: the same on all ranks; counted when None.
        process_set: whose ranks take part.

    Returns:
        A new array of tensor's shape and dtype.

    Raises:
        ValueError: root_rank is not in the set.
        MismatchError: ranks disagree on shape, dtype or root.
        PeerLostError: a rank is gone.
    """
    return broadcast_async(tensor, root_rank, name, process_set).synchronize()


def grouped_allgather_async(
    tensors: Sequence[Any], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Pending:
    """`grouped_allgather` that returns at once; see `synchronize`."""
    arrays = [_array(tensor) for tensor in tensors]
    for array in arrays:
        _need_rows("grouped_allgather", array)
    handle = _submit.submit(
        _submit.ALLGATHER,
        auto_name("grouped_allgather", name, set_number(process_set)),
        [_buffer(array) for array in arrays],
        process_set=set_number(process_set),
        keep=arrays,
    )
    return Pending([handle], lambda handles: [_result(handles[0], array, i) for i, array in enumerate(arrays)])


def grouped_allgather(
    tensors: Sequence[Any], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[np.ndarray]:
    """`allgather` of several arrays, of any dtypes, negotiated as one.

    Returns:
        New arrays, in the order of `tensors`.
    """
    return grouped_allgather_async(tensors, name, process_set).synchronize()


def allgather_async(tensor: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Pending:
    """`allgather` that returns at once; see `synchronize`."""
    array = _array(tensor)
    _need_rows("allgather", array)
    handle = _submit.submit(
        _submit.ALLGATHER, auto_name("allgather", name, set_number(process_set)), [_buffer(array)], process_set=set_number(process_set), keep=array
    )
    return Pending([handle], lambda handles: _result(handles[0], array))


def allgather(tensor: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> np.ndarray:
    """Concatenates the ranks' arrays along the first dimension, in rank order.

    Args:
        tensor: array of at least one dimension; the first may differ among ranks, the others and the dtype may not.
        name: the same on all ranks; counted when None.
        process_set: whose ranks take part.

    Returns:
        A new array of shape (sum of the first dimensions, ...).

    Raises:
        ValueError: tensor is a scalar.
        MismatchError: ranks disagree on dtype or on the other dimensions.
        PeerLostError: a rank is gone.
    """
    return allgather_async(tensor, name, process_set).synchronize()


# ---- reduce-scatter, all-to-all ----------------------------------------------------------------------------------------


def grouped_reducescatter_async(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending:
    """`grouped_reducescatter` that returns at once; see `synchronize`."""
    arrays = [_array(tensor) for tensor in tensors]
    for array in arrays:
        _need_rows("grouped_reducescatter", array)
    number = set_number(process_set)
    handles, groups = _submit.submit_by_dtype(
        _submit.REDUCESCATTER,
        auto_name("grouped_reducescatter", name, number),
        [_buffer(array) for array in arrays],
        op=which_op(op, None).native,
        prescale=prescale_factor,
        postscale=postscale_factor,
        process_set=number,
        keep=arrays,
    )
    return Pending(handles, lambda _: _submit.in_order(handles, groups, lambda handle, i, at: _result(handle, arrays[i], at)))


def grouped_reducescatter(
    tensors: Sequence[Any],
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[np.ndarray]:
    """`reducescatter` of several arrays, one request per dtype.

    Returns:
        This rank's rows of each, in the order of `tensors`.
    """
    return grouped_reducescatter_async(tensors, name, op, process_set, prescale_factor, postscale_factor).synchronize()


def reducescatter_async(
    tensor: Any,
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Pending:
    """`reducescatter` that returns at once; see `synchronize`."""
    array = _array(tensor)
    _need_rows("reducescatter", array)
    handle = _submit.submit(
        _submit.REDUCESCATTER,
        auto_name("reducescatter", name, set_number(process_set)),
        [_buffer(array)],
        op=which_op(op, None).native,
        prescale=prescale_factor,
        postscale=postscale_factor,
        process_set=set_number(process_set),
        keep=array,
    )
    return Pending([handle], lambda handles: _result(handles[0], array))


def reducescatter(
    tensor: Any,
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> np.ndarray:
    """Reduces an array over all ranks and gives each its part of the rows: d0 // n, one more for the first d0 % n ranks.

    Args:
        tensor: array of at least one dimension; the same shape and dtype on all ranks.
        name: the same on all ranks; counted when None.
        op: Average (default), Sum, Min, Max or Product.
        process_set: whose ranks take part.
        prescale_factor, postscale_factor: multiplied in before and after.

    Returns:
        A new array of this rank's rows.

    Raises:
        ValueError: tensor is a scalar, op or dtype does not exist.
        MismatchError: ranks disagree on what this name is.
        PeerLostError: a rank is gone.
    """
    return reducescatter_async(tensor, name, op, process_set, prescale_factor, postscale_factor).synchronize()


def alltoall_async(
    tensor: Any,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Pending:
    """`alltoall` that returns at once; see `synchronize`."""
    array = _array(tensor)
    _need_rows("alltoall", array)
    number = set_number(process_set)
    ranks = _core.check(_core.library().rm_process_set_size(number))
    rows = None if splits is None else [int(split) for split in np.asarray(splits).reshape(-1)]
    if rows is not None and len(rows) != ranks:
        raise ValueError(f"{len(rows)} splits for the {ranks} ranks of the process set")
    handle = _submit.submit(
        _submit.ALLTOALL, auto_name("alltoall", name, set_number(process_set)), [_buffer(array)], splits=rows, process_set=number, keep=array
    )

    def finish(handles: List[Handle]) -> Any:
        out = _result(handles[0], array)
        return out if splits is None else (out, np.array(handles[0].received_splits(ranks), np.int32))

    return Pending([handle], finish)


def alltoall(
    tensor: Any,
    splits: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Union[np.ndarray, Tuple[np.ndarray, np.ndarray]]:
    """Sends rows to every rank of a process set and receives theirs.

    Args:
        tensor: array of at least one dimension; the first may differ among ranks, the others and the dtype may not.
        splits: how many rows go to each rank; None: the same number to all.
        name: the same on all ranks; counted when None.
        process_set: whose ranks take part.

    Returns:
        The rows that came, in rank order; with splits also how many came from each rank (int32).

    Raises:
        ValueError: splits that do not fit the rows or the ranks.
        MismatchError: ranks disagree on dtype or on the other dimensions.
        PeerLostError: a rank is gone.
    """
    return alltoall_async(tensor, splits, name, process_set).synchronize()


# ---- barrier, join -----------------------------------------------------------------------------------------------------


def barrier(name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the process set has called it.

    Raises:
        PeerLostError: a rank is gone.
    """
    handle = _submit.submit(_submit.BARRIER, auto_name("barrier", name, set_number(process_set)), process_set=set_number(process_set))
    Pending([handle], lambda _: None).synchronize()


def join(device: int = -1) -> int:
    """This rank has no more data: collectives of the others go on without it. Returns when all ranks have joined.

    Args:
        device: not used; Horovod has it.

    Returns:
        The rank that joined last, the same on all ranks.

    Raises:
        PeerLostError: a rank is gone.
    """
    handle = _submit.submit(_submit.JOIN, "ringmaster.join")
    return Pending([handle], lambda handles: handles[0].last_joined()).synchronize()


# ---- objects -----------------------------------------------------------------------------------------------------------


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Gives every rank the root's object, by pickle (cloudpickle where it is installed): only for ranks that trust each other, as
    those of one job do.

    Args:
        obj: anything that pickles; only the root's counts.
        root_rank: whose object it is; a rank of the job.
        name: the same on all ranks; counted when None.
        process_set: whose ranks take part.

    Returns:
        The object; on the root the very one that was given.

    Raises:
        PeerLostError: a rank is gone.
    """
    base = auto_name("broadcast_object", name, set_number(process_set))
    mine = rank() == root_rank
    data = np.frombuffer(_pickler.dumps(obj), np.uint8) if mine else np.zeros(0, np.uint8)
    length = int(broadcast(np.array([data.size], np.int64), root_rank, f"{base}.length", process_set)[0])
    if not mine:
        data = np.zeros(length, np.uint8)
    data = broadcast(data, root_rank, f"{base}.data", process_set)
    return obj if mine else pickle.loads(data.tobytes())


def broadcast_object_fn(
    root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Callable[[Any], Any]:
    """`broadcast_object` with everything but the object filled in."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in rank order, by pickle: only for ranks that trust each other, as those of one job do.

    Raises:
        PeerLostError: a rank is gone.
    """
    data = np.frombuffer(_pickler.dumps(obj), np.uint8)
    lengths, everything = grouped_allgather(
        [np.array([data.size], np.int64), data], auto_name("allgather_object", name, set_number(process_set)), process_set
    )
    ends = np.cumsum(lengths)
    return [pickle.loads(everything[end - length : end].tobytes()) for end, length in zip(ends, lengths)]
