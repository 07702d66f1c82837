"""The synchronous collectives, which have gradients: those that Horovod gives them."""

from typing import Any, List, Optional, Sequence, Tuple, Type, Union

import torch

from .._basics import Average, Sum, rank, which_op
from ..process_sets import ProcessSet, global_process_set
from . import mpi_ops
from .compression import Compression, Compressor


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: Optional[str], *options: Any) -> torch.Tensor:
        ctx.options = options  # op, prescale, postscale, process_set
        op, prescale, postscale, process_set = options
        return mpi_ops.synchronize(mpi_ops.allreduce_async(tensor, None, name, op, prescale, postscale, process_set))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        return (_Allreduce.apply(grad.contiguous(), None, *ctx.options), *[None] * 5)


def allreduce(
    tensor: torch.Tensor,
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Type[Compressor] = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduces a tensor over all ranks of a process set; every one gets the same bits. Its gradient is reduced in the same way.

    Args:
        tensor: contiguous, of uint8, int8, int32, int64, float16, bfloat16, float32, float64 (bool: Min and Max only), on any device;
            the same shape and dtype on all ranks.
        average: Horovod's older way to say op: True is Average, False is Sum.
        name: the same on all ranks; counted when None.
        compression: Compression.none or Compression.fp16.
        op: Average (default; of integers without the fraction), Sum, Min, Max, Product or Adasum (floating types).
        prescale_factor, postscale_factor: multiplied in before and after.
        process_set: whose ranks take part.

    Returns:
        A new tensor.

    Raises:
        ValueError: op or dtype that does not exist, a tensor that is not contiguous, a name that is in flight.
        HorovodInternalError: ranks disagree on what this name is (MismatchError), or a rank is gone (PeerLostError).
    """
    small, context = compression.compress(tensor)
    reduced = _Allreduce.apply(small, name, which_op(op, average), prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, context)


class _GroupedAllreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Optional[str], options: Tuple[Any, ...], *tensors: torch.Tensor) -> Any:
        ctx.options = options
        op, prescale, postscale, process_set = options
        handle = mpi_ops.grouped_allreduce_async(tensors, None, name, op, prescale, postscale, process_set)
        return tuple(mpi_ops.synchronize(handle))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return (None, None, *_GroupedAllreduce.apply(None, ctx.options, *[grad.contiguous() for grad in grads]))


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: Optional[bool] = None,
    name: Optional[str] = None,
    compression: Type[Compressor] = Compression.none,
    op: Optional[int] = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> List[torch.Tensor]:
    """`allreduce` of several tensors: those of one dtype are one request, negotiated as one.

    Returns:
        New tensors, in the order of `tensors`.
    """
    if not tensors:
        return []
    small, contexts = zip(*[compression.compress(tensor) for tensor in tensors])
    options = (which_op(op, average), prescale_factor, postscale_factor, process_set)
    reduced = _GroupedAllreduce.apply(name, options, *small)
    return [compression.decompress(tensor, context) for tensor, context in zip(reduced, contexts)]


def _own_part(summed: torch.Tensor, rows: int, process_set: ProcessSet) -> torch.Tensor:
    """This rank's rows of a tensor that has the rows of all of them."""
    everyone = mpi_ops.synchronize(mpi_ops.allgather_async(torch.tensor([rows]), None, process_set)).tolist()
    return summed.narrow(0, sum(everyone[: process_set.rank()]), rows)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Optional[str], process_set: ProcessSet, grouped: bool, *tensors: torch.Tensor) -> Any:
        ctx.process_set = process_set
        if grouped:
            outputs = mpi_ops.synchronize(mpi_ops.grouped_allgather_async(tensors, name, process_set))
        else:
            outputs = [mpi_ops.synchronize(mpi_ops.allgather_async(tensors[0], name, process_set))]
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        options = (Average, 1.0, 1.0, ctx.process_set)  # as in Horovod: the mean over the ranks, of what is this rank's
        averaged = _GroupedAllreduce.apply(None, options, *[grad.contiguous() for grad in grads])
        parts = [_own_part(grad, rows, ctx.process_set) for grad, rows in zip(averaged, ctx.rows)]
        return (None, None, None, *parts)


def allgather(tensor: torch.Tensor, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Concatenates the ranks' tensors along the first dimension, in rank order.

    Its gradient is this rank's rows of the average over the ranks, as in Horovod.

    Args:
        tensor: of at least one dimension; the first may differ among ranks, the others and the dtype may not. Also bool, int16, uint16.
        name: the same on all ranks; counted when None.
        process_set: whose ranks take part.

    Raises:
        ValueError: a scalar, or a tensor that is not contiguous.
        HorovodInternalError: ranks disagree, or a rank is gone.
    """
    return _Allgather.apply(name, process_set, False, tensor)[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[torch.Tensor]:
    """`allgather` of several tensors, of any dtypes, negotiated as one.

    Returns:
        New tensors, in the order of `tensors`.
    """
    return list(_Allgather.apply(name, process_set, True, *tensors)) if tensors else []


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root: int, name: Optional[str], process_set: ProcessSet) -> torch.Tensor:
        ctx.root, ctx.process_set = root, process_set
        return mpi_ops.synchronize(mpi_ops.broadcast_async(tensor, root, name, process_set))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        averaged = _Allreduce.apply(grad.contiguous(), None, Average, 1.0, 1.0, ctx.process_set)
        return (averaged if rank() == ctx.root else torch.zeros_like(averaged)), None, None, None


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Gives every rank of a process set the root's tensor.

    Its gradient is the average over the ranks on the root, and 0 elsewhere, as in Horovod.

    Args:
        tensor: the same shape and dtype on all ranks; also bool, int16, uint16.
        root_rank: whose values count; a rank of the job, also in a process set.
        name: the same on all ranks; counted when None.
        process_set: whose ranks take part.

    Returns:
        A new tensor.

    Raises:
        ValueError: root_rank is not in the set.
        HorovodInternalError: ranks disagree on shape, dtype or root, or a rank is gone.
    """
    return _Broadcast.apply(tensor, root_rank, name, process_set)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: Optional[str], process_set: ProcessSet) -> Any:
        ctx.process_set, ctx.received = process_set, None
        output = mpi_ops.synchronize(mpi_ops.alltoall_async(tensor, splits, name, process_set))
        if splits is None:
            return output
        ctx.received = output[1]
        ctx.mark_non_differentiable(output[1])
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *received: Any) -> Any:  # type: ignore[override]
        back = _Alltoall.apply(grad.contiguous(), ctx.received, None, ctx.process_set)
        return (back if ctx.received is None else back[0]), None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: Union[None, torch.Tensor, Sequence[int]] = None,
    name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]]:
    """Sends rows to every rank of a process set and receives theirs. Its gradient goes the way back.

    Args:
        tensor: of at least one dimension; the first may differ among ranks, the others and the dtype may not.
        splits: how many rows go to each rank; None: the same number to all.
        name: the same on all ranks; counted when None.
        process_set: whose ranks take part.

    Returns:
        The rows that came, in rank order; with splits also how many came from each rank (int32).

    Raises:
        ValueError: splits that do not fit the rows or the ranks.
        HorovodInternalError: ranks disagree, or a rank is gone.
    """
    return _Alltoall.apply(tensor, splits, name, process_set)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: Optional[str], options: Tuple[Any, ...], grouped: bool, *tensors: torch.Tensor) -> Any:
        op, process_set, prescale, postscale = options
        ctx.process_set = process_set
        ctx.scale = (process_set.size() if op == Sum else 1) * prescale * postscale
        if grouped:
            return tuple(mpi_ops.synchronize(mpi_ops.grouped_reducescatter_async(tensors, name, *options)))
        return (mpi_ops.synchronize(mpi_ops.reducescatter_async(tensors[0], name, *options)),)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        scaled = [grad * ctx.scale if ctx.scale != 1 else grad.contiguous() for grad in grads]
        return (None, None, None, *_Allgather.apply(None, ctx.process_set, True, *[grad.contiguous() for grad in scaled]))


def reducescatter(
    tensor: torch.Tensor,
    name: Optional[str] = None,
    compression: Type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduces a tensor over all ranks and gives each its part of the rows: d0 // n, one more for the first d0 % n ranks.

    Its gradient is gathered from all ranks (times their number with Sum), as in Horovod.

    Args:
        tensor: of at least one dimension; the same shape and dtype on all ranks.
        name: the same on all ranks; counted when None.
        compression: Compression.none or Compression.fp16.
        op: Average (default), Sum, Min, Max or Product.
        process_set: whose ranks take part.
        prescale_factor, postscale_factor: multiplied in before and after.

    Returns:
        A new tensor of this rank's rows.

    Raises:
        ValueError: a scalar, or op or dtype that does not exist.
        HorovodInternalError: ranks disagree, or a rank is gone.
    """
    small, context = compression.compress(tensor)
    options = (op, process_set, prescale_factor, postscale_factor)
    return compression.decompress(_Reducescatter.apply(name, options, False, small)[0], context)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: Optional[str] = None,
    compression: Type[Compressor] = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> List[torch.Tensor]:
    """`reducescatter` of several tensors: those of one dtype are one request.

    Returns:
        This rank's rows of each, in the order of `tensors`.
    """
    if not tensors:
        return []
    small, contexts = zip(*[compression.compress(tensor) for tensor in tensors])
    options = (op, process_set, prescale_factor, postscale_factor)
    scattered = _Reducescatter.apply(name, options, True, *small)
    return [compression.decompress(tensor, context) for tensor, context in zip(scattered, contexts)]
