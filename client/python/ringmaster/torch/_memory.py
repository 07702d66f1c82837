"""Tensors as the library sees them: contiguous memory and a dtype.

All-reduce and broadcast take the memory of an NVIDIA GPU as it is, in stream order. Whatever else lies on a device goes through pinned
host memory here.
"""

import ctypes
from typing import Any, List, Optional, Sequence, Tuple

import torch

from .. import _submit
from .._core import InvalidError
from .._submit import Buffer, Handle

CODES = {
    getattr(torch, name): code for name, code in _submit.DTYPES.items() if isinstance(getattr(torch, name, None), torch.dtype)
}  # uint16 came with torch 2.3


def check(kind: str, tensor: Any) -> None:
    """Raises InvalidError, a ValueError, for what cannot travel."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidError(f"{kind} needs a torch.Tensor, not {type(tensor).__name__}")
    if tensor.dtype not in CODES:
        raise InvalidError(f"{kind}: tensor type {tensor.dtype} is not supported; supported are {', '.join(_submit.DTYPES)}")
    if tensor.layout != torch.strided:
        raise InvalidError(f"{kind}: tensors of layout {tensor.layout} are not supported; see sparse_allreduce_async")
    if not tensor.is_contiguous():
        raise InvalidError(f"{kind}: tensor is required to be contiguous")


def check_rows(kind: str, tensor: Any) -> None:
    """`check`, and that there is a first dimension."""
    check(kind, tensor)
    if tensor.dim() == 0:
        raise InvalidError(f"{kind} needs a tensor of at least one dimension; a scalar has no rows")


def empty_on_host(like: torch.Tensor) -> torch.Tensor:
    """Host memory for a tensor of this shape, pinned when it is for a GPU."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in host memory: itself when it is there, else a copy that is complete."""
    tensor = tensor.detach()
    return tensor if tensor.device.type == "cpu" else empty_on_host(tensor).copy_(tensor)


def stream_of(tensors: Sequence[torch.Tensor]) -> Optional[int]:
    """The stream in whose order the library itself reads and writes these tensors: of the one NVIDIA GPU that all of them lie on, the
    current one. None: they have to come to the host."""
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1 or next(iter(devices)).type != "cuda" or torch.version.cuda is None:
        return None
    return torch.cuda.current_stream(devices.pop()).cuda_stream


def places(
    tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], in_place: bool
) -> Tuple[List[torch.Tensor], List[torch.Tensor], Optional[int]]:
    """Where an operation reads and writes, and `stream` for `submit`. `bring_back` is to follow."""
    stream = stream_of(tensors)
    if stream is not None:
        return [tensor.detach() for tensor in tensors], [output.detach() for output in outputs], stream
    hosts = [on_host(tensor) for tensor in tensors]
    targets = [
        host if in_place else output if output.device.type == "cpu" else empty_on_host(output)
        for host, output in zip(hosts, outputs)
    ]
    return hosts, targets, None


def buffer(host: torch.Tensor, output: Any = None) -> Buffer:
    """What `submit` takes."""
    return Buffer(host.data_ptr(), 0 if output is None else output.data_ptr(), tuple(host.shape), CODES[host.dtype])


def bring_back(hosts: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """Fills the tensors that are not in host memory from where their values came in."""
    for host, output in zip(hosts, outputs):
        if output.device != host.device:
            output.detach().copy_(host)
    return list(outputs)


def result(handle: Handle, like: torch.Tensor, index: int = 0) -> torch.Tensor:
    """The rows that a collective gave, as a new tensor on the device of `like`."""
    address, rows = handle.output(index)
    out = torch.empty((rows, *like.shape[1:]), dtype=like.dtype)
    if out.numel():
        ctypes.memmove(out.data_ptr(), address, out.numel() * out.element_size())
    return out.to(like.device)
