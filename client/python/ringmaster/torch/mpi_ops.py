"""The asynchronous collectives on tensors, and those in place. The module is called as Horovod's is, of which it has all names."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Union

import torch

from .. import _core, _ops, _submit
from .._basics import Adasum, Average, Sum, auto_name, which_op
from .._common import *  # noqa: F403
from .._core import InvalidError
from ..process_sets import ProcessSet, global_process_set, set_number
from . import _memory


class Handle(_ops.Pending):
    """What the *_async functions give: for `poll` and `synchronize`. One that is dropped does no harm."""

    def __init__(self, handles: List[_submit.Handle], finish: Callable[[List[_submit.Handle]], Any]):
        super().__init__(handles, finish)
        self._done = False
        self._value: Any = None

    def synchronize(self) -> Any:
        if not self._done:
            self._value = super().synchronize()
            self._done = True
        return self._value


def poll(handle: Handle) -> bool:
    """Whether an asynchronous collective is done, well or not: `synchronize` will not block."""
    return handle.poll()


def synchronize(handle: Handle) -> Any:
    """Waits for an asynchronous collective.

    Returns:
        Its tensor, or list of tensors: what the synchronous function returns.

    Raises:
        HorovodInternalError: how it ended.
    """
    return handle.synchronize()


# ---- all-reduce --------------------------------------------------------------------------------------------------------


def _allreduce_async(
    kind: str,
    tensors: Sequence[torch.Tensor],
    in_place: bool,
    average: Optional[bool],
    name: Optional[str],
    op: Optional[int],
    prescale: float,
    postscale: float,
    process_set: ProcessSet,
    finish: Callable[[List[torch.Tensor]], Any],
) -> Handle:
    for tensor in tensors:
        _memory.check(kind, tensor)
    operation, number = which_op(op, average), set_number(process_set)
    outputs = list(tensors) if in_place else [torch.empty_like(t, requires_grad=False) for t in tensors]
    hosts, targets, stream = _memory.places(tensors, outputs, in_place)
    buffers = [_memory.buffer(host, target) for host, target in zip(hosts, targets)]
    options: Dict[str, Any] = {
        "op": operation.native,
        "prescale": prescale,
        "postscale": postscale,
        "process_set": number,
        "keep": (hosts, targets, outputs),
        "stream": stream,
    }
    full_name = auto_name(kind, name, number)
    if kind == "allreduce":
        handles = [_submit.submit(_submit.ALLREDUCE, full_name, buffers, **options)]
    else:
        handles, _ = _submit.submit_by_dtype(_submit.ALLREDUCE, full_name, buffers, apart=operation == Adasum, **options)
    return Handle(handles, lambda _: finish(_memory.bring_back(targets, outputs)))


def _first(tensors: List[torch.Tensor]) -> torch.Tensor:
    return tensors[0]


def allreduce_async(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`allreduce` that returns at once and has no gradient; see `synchronize`. The tensor must not change until then."""
    return _allreduce_async(
        "allreduce", [tensor], False, average, name, op, prescale_factor, postscale_factor, process_set, _first
    )


def allreduce_async_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`allreduce_async` into the tensor itself."""
    return _allreduce_async(
        "allreduce", [tensor], True, average, name, op, prescale_factor, postscale_factor, process_set, _first
    )


def allreduce_(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """`allreduce` into the tensor itself, which is returned. It has no gradient."""
    return synchronize(allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor, process_set))


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`grouped_allreduce` that returns at once and has no gradient; see `synchronize`."""
    return _allreduce_async(
        "grouped_allreduce", tensors, False, average, name, op, prescale_factor, postscale_factor, process_set, list
    )


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`grouped_allreduce_async` into the tensors themselves."""
    return _allreduce_async(
        "grouped_allreduce", tensors, True, average, name, op, prescale_factor, postscale_factor, process_set, list
    )


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[torch.Tensor]:
    """`grouped_allreduce` into the tensors themselves, which are returned. It has no gradient."""
    return synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set))


def sparse_allreduce_async(
    tensor: torch.Tensor, name: Optional[str], op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """Adds up or averages sparse tensors: values and indices of all ranks are gathered, end to end.

    Args:
        tensor: sparse, COO; the number of its elements may differ among ranks.
        name: the same on all ranks; counted when None.
        op: Average or Sum.
        process_set: whose ranks take part.

    Returns:
        A function (no handle) that waits and gives the sparse tensor, not coalesced.

    Raises:
        ValueError: another operation, or a tensor that is not sparse.
    """
    if tensor.layout != torch.sparse_coo:
        raise InvalidError(f"sparse_allreduce_async needs a sparse COO tensor, not one of layout {tensor.layout}")
    if op not in (Average, Sum):
        raise InvalidError(f"op={op!r}: sparse tensors can be reduced by Average and Sum")
    base = auto_name("sparse_allreduce", name, set_number(process_set)).split(".", 1)[1] if name is None else name
    # Rows are what an all-gather puts end to end.
    indices = allgather_async(tensor._indices().t().contiguous(), f"{base}.indices", process_set)
    values = allgather_async(tensor._values().contiguous(), f"{base}.values", process_set)

    def finish() -> torch.Tensor:
        all_values, all_indices = synchronize(values), synchronize(indices)
        if op == Average:
            all_values = all_values / process_set.size()
        return torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.size())

    return finish


# ---- all-gather, broadcast ---------------------------------------------------------------------------------------------


def _gather_async(kind: str, tensors: Sequence[torch.Tensor], name: Optional[str], process_set: ProcessSet, finish: Any) -> Handle:
    for tensor in tensors:
        _memory.check_rows(kind, tensor)
    number = set_number(process_set)
    hosts = [_memory.on_host(tensor) for tensor in tensors]
    handle = _submit.submit(
        _submit.ALLGATHER,
        auto_name(kind, name, number),
        [_memory.buffer(host) for host in hosts],
        process_set=number,
        keep=hosts,
    )
    return Handle([handle], lambda handles: finish([_memory.result(handles[0], t, i) for i, t in enumerate(tensors)]))


def allgather_async(tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> Handle:
    """`allgather` that returns at once and has no gradient; see `synchronize`."""
    return _gather_async("allgather", [tensor], name, process_set, _first)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """`grouped_allgather` that returns at once and has no gradient; see `synchronize`."""
    return _gather_async("grouped_allgather", tensors, name, process_set, list)


def _broadcast_async(tensor: torch.Tensor, in_place: bool, root_rank: int, name: Optional[str], process_set: ProcessSet) -> Handle:
    _memory.check("broadcast", tensor)
    number = set_number(process_set)
    output = tensor if in_place else torch.empty_like(tensor, requires_grad=False)
    hosts, targets, stream = _memory.places([tensor], [output], in_place)
    handle = _submit.submit(
        _submit.BROADCAST,
        auto_name("broadcast", name, number),
        [_memory.buffer(hosts[0], targets[0])],
        root=int(root_rank),
        process_set=number,
        keep=(hosts, targets, output),
        stream=stream,
    )
    return Handle([handle], lambda _: _memory.bring_back(targets, [output])[0])


def broadcast_async(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """`broadcast` that returns at once and has no gradient; see `synchronize`."""
    return _broadcast_async(tensor, False, root_rank, name, process_set)


def broadcast_async_(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """`broadcast_async` into the tensor itself."""
    return _broadcast_async(tensor, True, root_rank, name, process_set)


def broadcast_(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """`broadcast` into the tensor itself, which is returned. It has no gradient."""
    return synchronize(broadcast_async_(tensor, root_rank, name, process_set))


# ---- reduce-scatter, all-to-all ----------------------------------------------------------------------------------------


def _scatter_async(
    kind: str,
    tensors: Sequence[torch.Tensor],
    name: Optional[str],
    op: int,
    process_set: ProcessSet,
    prescale: float,
    postscale: float,
    finish: Any,
) -> Handle:
    for tensor in tensors:
        _memory.check_rows(kind, tensor)
    operation, number = which_op(op, None), set_number(process_set)
    hosts = [_memory.on_host(tensor) for tensor in tensors]
    buffers = [_memory.buffer(host) for host in hosts]
    options: Dict[str, Any] = {"op": operation.native, "prescale": prescale, "postscale": postscale, "process_set": number, "keep": hosts}
    full_name = auto_name(kind, name, number)
    if kind == "reducescatter":
        handles, groups = [_submit.submit(_submit.REDUCESCATTER, full_name, buffers, **options)], [[0]]
    else:
        handles, groups = _submit.submit_by_dtype(_submit.REDUCESCATTER, full_name, buffers, **options)

    def results(_: List[_submit.Handle]) -> Any:
        return finish(_submit.in_order(handles, groups, lambda handle, i, at: _memory.result(handle, tensors[i], at)))

    return Handle(handles, results)


def reducescatter_async(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """`reducescatter` that returns at once and has no gradient; see `synchronize`."""
    return _scatter_async("reducescatter", [tensor], name, op, process_set, prescale_factor, postscale_factor, _first)


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """`grouped_reducescatter` that returns at once and has no gradient; see `synchronize`."""
    return _scatter_async("grouped_reducescatter", tensors, name, op, process_set, prescale_factor, postscale_factor, list)


def _whole_numbers(splits: Any) -> List[int]:
    numbers = splits if isinstance(splits, torch.Tensor) else torch.as_tensor(splits)
    if numbers.numel() and (numbers.dtype.is_floating_point or numbers.dtype.is_complex or numbers.dtype == torch.bool):
        raise InvalidError(f"alltoall: splits are whole numbers of rows, not {numbers.dtype}")
    return [int(number) for number in numbers.reshape(-1).tolist()]


def alltoall_async(
    tensor: torch.Tensor,
    splits: Union[None, torch.Tensor, Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """`alltoall` that returns at once and has no gradient; see `synchronize`."""
    _memory.check_rows("alltoall", tensor)
    number = set_number(process_set)
    ranks = _core.check(_core.library().rm_process_set_size(number))
    rows = None if splits is None else _whole_numbers(splits)
    if rows is not None and len(rows) != ranks:
        raise InvalidError(f"alltoall: {len(rows)} splits for the {ranks} ranks of the process set")
    host = _memory.on_host(tensor)
    handle = _submit.submit(
        _submit.ALLTOALL,
        auto_name("alltoall", name, number),
        [_memory.buffer(host)],
        splits=rows,
        process_set=number,
        keep=host,
    )

    def finish(handles: List[_submit.Handle]) -> Any:
        output = _memory.result(handles[0], tensor)
        if splits is None:
            return output
        return output, torch.tensor(handles[0].received_splits(ranks), dtype=torch.int32, device=getattr(splits, "device", "cpu"))

    return Handle([handle], finish)


# ---- join, barrier -----------------------------------------------------------------------------------------------------


def join(device: int = -1) -> int:
    """This rank has no more data: collectives of the others go on without it. Returns when all ranks have joined.

    Args:
        device: not used; Horovod has it.

    Returns:
        The rank that joined last, the same on all ranks.
    """
    return _ops.join(device)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the process set has called it."""
    _ops.barrier(process_set=process_set)


from .autograd import (  # noqa: E402, F401 (Horovod has them here)
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
