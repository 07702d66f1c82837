"""What a training script says once: everyone begins with one rank's parameters, optimizer state and objects."""

from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

import torch

from .. import _ops
from .._basics import rank
from ..process_sets import ProcessSet, global_process_set
from .mpi_ops import broadcast_async_, synchronize


def _pairs(params: Any) -> List[Tuple[Optional[str], Any]]:
    if isinstance(params, Mapping):
        return sorted(params.items())
    if isinstance(params, Iterable) and not isinstance(params, (str, bytes, torch.Tensor)):
        return [p if isinstance(p, tuple) else (None, p) for p in params]
    raise ValueError(f"invalid params of type: {type(params)}; give a state_dict, or an iterable of parameters or (name, parameter)")


def broadcast_parameters(params: Any, root_rank: int, prefix: Optional[str] = None) -> None:
    """Sets parameters to one rank's values, in place.

    Args:
        params: `model.state_dict()`, `model.named_parameters()` or `model.parameters()`; the same on all ranks. What is no tensor is
            left as it is.
        root_rank: whose values count.
        prefix: put before the names.

    Raises:
        ValueError: params of another kind.
        HorovodInternalError: ranks disagree on a parameter, or a rank is gone.
    """
    targets = []
    for name, parameter in _pairs(params):
        if not isinstance(parameter, torch.Tensor):
            continue
        data = parameter.detach()
        contiguous = data if data.is_contiguous() else data.contiguous()
        full_name = name if prefix is None else f"{prefix}.{name}"
        targets.append((data, contiguous, broadcast_async_(contiguous, root_rank, full_name)))
    for data, contiguous, handle in targets:
        synchronize(handle)
        if contiguous is not data:
            data.copy_(contiguous)


class _Place:
    """Where a tensor stood in an optimizer's state."""

    def __init__(self, tensor: torch.Tensor):
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device.type

    def empty(self, near: torch.Tensor) -> torch.Tensor:
        """Memory for it: beside its parameter, but in host memory if that is where it was (as step counts are)."""
        return torch.empty(self.shape, dtype=self.dtype, device="cpu" if self.device == "cpu" else near.device)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """Sets an optimizer, its options too, to one rank's state.

    Where the root has made no step yet there is no state: then the others have none, either, afterwards. (Horovod makes one by a step
    with gradients of 0, which moves parameters that decay, and counts.)

    Args:
        optimizer: of torch.optim, or a DistributedOptimizer; not LBFGS.
        root_rank: whose state counts.
        model: not needed; Horovod has it.

    Raises:
        ValueError: LBFGS, whose state is not a tensor a parameter.
        HorovodInternalError: ranks disagree, or a rank is gone.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    mine = rank() == root_rank
    state = optimizer.state_dict() if mine else {}
    tensors: Dict[Tuple[Any, Any], torch.Tensor] = {}
    skeleton: Any = None
    if mine:
        places: Dict[Any, Dict[Any, Any]] = {}
        for index, entries in state["state"].items():
            places[index] = {}
            for key, value in entries.items():
                if isinstance(value, torch.Tensor):
                    tensors[index, key] = value
                    value = _Place(value)
                places[index][key] = value
        skeleton = (places, state["param_groups"])
    places, groups = _ops.broadcast_object(skeleton, root_rank, "optimizer.state")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    handles = []
    for index, entries in places.items():
        for key, value in entries.items():
            if isinstance(value, _Place):
                if not mine:
                    tensors[index, key] = value.empty(parameters[index])
                contiguous = tensors[index, key].detach().contiguous()
                handles.append((index, key, contiguous, broadcast_async_(contiguous, root_rank, f"optimizer.{index}.{key}")))
    for index, key, tensor, handle in handles:
        places[index][key] = synchronize(handle)
    if not mine:
        optimizer.load_state_dict({"state": places, "param_groups": groups})


def broadcast_object(
    obj: Any = None, root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """Gives every rank the root's object, by pickle (cloudpickle where it is installed); see ringmaster.broadcast_object."""
    return _ops.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> Any:
    """`broadcast_object` with everything but the object filled in."""
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set) -> List[Any]:
    """The objects of all ranks, in rank order, by pickle (cloudpickle where it is installed)."""
    return _ops.allgather_object(obj, name, process_set)
