"""Tensors as the library sees them: contiguous host memory and a dtype. What lies on a device goes through pinned host memory."""

import ctypes
from typing import Any, List, Sequence

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


def buffer(host: torch.Tensor, output: Any = None) -> Buffer:
    """What `submit` takes."""
    return Buffer(host.data_ptr(), 0 if output is None else output.data_ptr(), tuple(host.shape), CODES[host.dtype])


def bring_back(hosts: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """Fills the tensors that are not in host memory from where their values came in."""
    for host, output in zip(hosts, outputs):
        if output.device.type != "cpu":
            output.detach().copy_(host)
    return list(outputs)


def result(handle: Handle, like: torch.Tensor, index: int = 0) -> torch.Tensor:
    """The rows that a collective gave, as a new tensor on the device of `like`."""
    address, rows = handle.output(index)
    out = torch.empty((rows, *like.shape[1:]), dtype=like.dtype)
    if out.numel():
        ctypes.memmove(out.data_ptr(), address, out.numel() * out.element_size())
    return out.to(like.device)
