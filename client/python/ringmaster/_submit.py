"""Collectives on memory: what the numpy, torch and TensorFlow layers are built on.

    handle = submit(ALLREDUCE, "allreduce.w", [Buffer(in_address, out_address, shape, DTYPES["float32"])], op=1, keep=tensors)
    handle.wait()
"""

import ctypes
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _core

ALLREDUCE, ALLGATHER, BROADCAST, BARRIER, REDUCESCATTER, ALLTOALL, JOIN = 1, 2, 3, 4, 6, 7, 8  # enum rm_kind

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
    "uint16": 10,
    "int16": 11,
}
HOST, CUDA = 0, 1  # enum rm_memory
FLOATING = {DTYPES[name] for name in ("float16", "bfloat16", "float32", "float64")}

_NO_DONE = _core.DONE_FN()


class Buffer(NamedTuple):
    """A contiguous tensor by its addresses, in host memory unless `submit` is told of a stream. `output` is 0 where the operation has a result of its own."""

    input: int
    output: int
    shape: Sequence[int]
    dtype: int


class Handle:
    """A collective under way. It keeps the buffers alive until it is done, also when nobody waits for it any more."""

    def __init__(self, number: int, keep: Any):
        self._number: Optional[int] = number
        self._keep = keep

    def poll(self) -> bool:
        """Whether it is done, well or not."""
        return self._number is None or _core.check(_core.library().rm_poll(self._number)) == 1

    def wait(self) -> None:
        """Waits in slices, so that Ctrl-C is heard. What has a result keeps it until `release`.

        Raises:
            RingmasterError: how it ended; PeerLostError, MismatchError and so on.
        """
        if self._number is None:
            return
        lib = _core.library()
        code = _core.TIMEOUT
        while code == _core.TIMEOUT:
            code = lib.rm_wait(self._number, 200)
        if code < 0:
            failure = _core.error(code)
            self.release()
            raise failure

    def output(self, index: int = 0) -> Tuple[int, int]:
        """(address, rows) of a result; valid until `release`."""
        data, rows = ctypes.c_void_p(), ctypes.c_int64()
        _core.check(_core.library().rm_output(self._number, index, ctypes.byref(data), ctypes.byref(rows)))
        return data.value or 0, rows.value

    def received_splits(self, ranks: int) -> List[int]:
        """All-to-all: rows that came from each of the set's ranks."""
        rows = (ctypes.c_int64 * ranks)()
        _core.check(_core.library().rm_received_splits(self._number, rows, ranks))
        return list(rows)

    def last_joined(self) -> int:
        """Join: the rank that came last."""
        return _core.check(_core.library().rm_joined(self._number))

    def release(self) -> None:
        """The result is not needed any more."""
        number, self._number = self._number, None
        if number is None:
            return
        lib = _core.library()
        if lib.rm_poll(number) == 0:
            _abandon(number, self._keep)
        else:
            lib.rm_release(number)
        self._keep = None

    def __del__(self) -> None:
        try:
            self.release()
        except Exception:  # the interpreter is being torn down
            pass


_abandoned: List[Tuple[int, Any]] = []  # requests that nobody waits for, but whose buffers are still in use


def _abandon(number: int, keep: Any) -> None:
    lib = _core.library()
    for entry in list(_abandoned):
        if lib.rm_poll(entry[0]) != 0:
            lib.rm_release(entry[0])
            _abandoned.remove(entry)
    _abandoned.append((number, keep))


WIRES = {None: 0, "plain": 1, "float16": 2, "bfloat16": 3, "int8": 4, "exact": 5}  # enum rm_wire


def which_wire(name: Optional[str]) -> int:
    """The number of a form for the wire; ValueError when there is none of that name."""
    if name not in WIRES:
        raise ValueError(f"wire={name!r}: known are {', '.join(str(known) for known in WIRES if known)}, and None for what the job is set up for")
    return WIRES[name]


def submit(
    kind: int,
    name: str,
    buffers: Sequence[Buffer] = (),
    *,
    op: int = 0,
    prescale: float = 1.0,
    postscale: float = 1.0,
    root: int = 0,
    splits: Optional[Sequence[int]] = None,
    process_set: int = 0,
    keep: Any = None,
    done: Any = None,
    stream: Optional[int] = None,
    wire: int = 0,
) -> Handle:
    """Starts a collective; see rm_submit in ringmaster.h.

    Args:
        kind: ALLREDUCE and the others.
        name: the same on all ranks of the set.
        buffers: one, or several as a group.
        op: enum rm_op, of a reduction.
        prescale, postscale: of a reduction.
        root: of a broadcast; a rank of the job.
        splits: of an all-to-all, rows for each rank of the set; None: evenly.
        process_set: its number.
        keep: held until the collective is done; the buffers' owners.
        wire: enum rm_wire, of a reduction; `which_wire` knows their names.
        done: a `_core.DONE_FN`, called on the library's thread; the caller keeps it alive.
        stream: the buffers lie in GPU memory, and what is in this CUDA stream now comes before; 0 is the default stream.

    Raises:
        InvalidError: it cannot be right; it is a ValueError too.
        PeerLostError, RingmasterError: it cannot begin.
    """
    tensors = (_core.Tensor * max(1, len(buffers)))()
    for tensor, buffer in zip(tensors, buffers):
        tensor.input, tensor.output = buffer.input, buffer.output
        tensor.ndim, tensor.dtype = len(buffer.shape), buffer.dtype
        tensor.shape = (ctypes.c_int64 * max(1, len(buffer.shape)))(*buffer.shape)
    collective = _core.Collective(
        struct_bytes=ctypes.sizeof(_core.Collective),
        kind=kind,
        name=name.encode(),
        process_set=process_set,
        op=op,
        prescale=prescale,
        postscale=postscale,
        root=root,
        tensor_count=len(buffers),
        tensors=tensors,
        splits=None if splits is None else (ctypes.c_int64 * max(1, len(splits)))(*splits),
        done=done or _NO_DONE,
        memory=HOST if stream is None else CUDA,
        stream=stream,
        wire=wire,
    )
    number = ctypes.c_uint64()
    _core.check(_core.library().rm_submit(ctypes.byref(collective), ctypes.byref(number)))
    return Handle(number.value, keep)


def submit_by_dtype(
    kind: int, base: str, buffers: Sequence[Buffer], *, apart: bool = False, **options: Any
) -> Tuple[List[Handle], List[List[int]]]:
    """Starts one collective for the buffers of each dtype, in an order that is the same on all ranks. All or none: what has begun when
    one cannot begin is abandoned.

    Args:
        kind: ALLREDUCE or REDUCESCATTER.
        base: they are called `base.<number of the dtype>`.
        buffers: of any dtypes.
        apart: one for each buffer, called `base.<index>`: Adasum looks at whole tensors, packed ones would be one.
        options: as in `submit`.

    Returns:
        The handles, and for each the indices of its buffers.
    """
    groups: Dict[int, List[int]] = {}
    for index, buffer in enumerate(buffers):
        groups.setdefault(index if apart else buffer.dtype, []).append(index)
    handles: List[Handle] = []
    try:
        for key, indices in sorted(groups.items()):
            handles.append(submit(kind, f"{base}.{key}", [buffers[index] for index in indices], **options))
    except BaseException:
        for handle in handles:
            handle.release()
        raise
    return handles, [indices for _, indices in sorted(groups.items())]


def in_order(handles: Sequence[Handle], groups: Sequence[Sequence[int]], result: Callable[[Handle, int, int], Any]) -> List[Any]:
    """The results of what `submit_by_dtype` began, in the order of the tensors; result(handle, the tensor's index, its place there)."""
    found = {i: result(handle, i, at) for handle, indices in zip(handles, groups) for at, i in enumerate(indices)}
    return [found[i] for i in range(len(found))]
