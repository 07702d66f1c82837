"""The state of training with torch, saved in host memory and given to ranks that are new."""

import copy
from typing import Any, Dict, List, Optional, Tuple

import torch

from ...elastic import ObjectState, sync_root
from ..functions import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ..mpi_ops import rank
from .sampler import ElasticSampler


def _copy(value: Any) -> Any:
    """A deep copy with its tensors in host memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return type(value)((key, _copy(entry)) for key, entry in value.items())
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(_copy(entry) for entry in value)
    return copy.deepcopy(value)


class StateHandler:
    """How a value of some type is saved, restored and synchronized. Derive from it for a type of your own, and register it."""

    def __init__(self, value: Any):
        self.value = value

    def save(self) -> None:
        """Saves the value to memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Sets the value to what was saved."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives every rank the value of `sync_root()`."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """The attribute has been given another object."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    def __init__(self, value: Any):
        super().__init__(value)
        self._saved: Any = None
        self.save()

    def save(self) -> None:
        self._saved = _copy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(_copy(self._saved))  # an optimizer may keep the very tensors it is given


class ModelStateHandler(_StateDictHandler):
    """Of a torch.nn.Module."""

    def sync(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=sync_root())
        self.save()


class OptimizerStateHandler(_StateDictHandler):
    """Of a torch.optim.Optimizer."""

    def sync(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=sync_root())
        self.save()


class SamplerStateHandler(_StateDictHandler):
    """Of an ElasticSampler."""

    def sync(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), sync_root()))
        self.save()


_handler_registry: List[Tuple[type, type]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> List[Tuple[type, type]]:
    """Which types have handlers, as (type, handler); the first that fits counts."""
    return _handler_registry


def set_handler_registry(registry: List[Tuple[type, type]]) -> None:
    """Replaces the list of `get_handler_registry`."""
    global _handler_registry
    _handler_registry = registry


def _handler(value: Any) -> Optional[StateHandler]:
    for kind, handler in _handler_registry:
        if isinstance(value, kind):
            return handler(value)
    return None


class TorchState(ObjectState):
    """Models, optimizers, samplers and plain objects that the ranks share, given by keyword and found as attributes.

    Args:
        model: a torch.nn.Module.
        optimizer: a torch.optim.Optimizer.
        kwargs: more of them; what has no handler is an object that travels by pickle.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any):
        kwargs.update(model=model, optimizer=optimizer)
        handlers: Dict[str, StateHandler] = {}
        for name, value in kwargs.items():
            handler = _handler(value)
            if handler is not None:
                handlers[name] = handler
        object.__setattr__(self, "_handlers", handlers)
        for name, handler in handlers.items():
            object.__setattr__(self, name, handler.value)
        plain = {name: value for name, value in kwargs.items() if name not in handlers}
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **plain)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._handlers and hasattr(self, name):
            self._handlers[name].set_value(value)
        super().__setattr__(name, value)
