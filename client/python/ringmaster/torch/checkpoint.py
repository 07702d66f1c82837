"""Checkpoints of torch training: modules, optimizers and whatever else has a state_dict, saved without a pause and resumed after a loss.

    saver = checkpoint.Checkpoint(model=model, optimizer=optimizer, scheduler=scheduler)
    for step in range(saver.restore(), steps):     # 0: from scratch
        train(step)
        saver.step(step + 1)                       # saves when it is time

The state is one that all ranks hold alike (data parallel): each rank saves its share of the tensors, in safetensors. Values of a rank's own,
its random generators among them, are saved beside them.
"""

import base64
import logging
import random
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Sequence

import numpy as np
import torch

from .. import _basics, _core
from .. import checkpoint as _checkpoint
from .._cadence import Cadence
from ..checkpoint import available, resume_step, wait, wanted

log = logging.getLogger("ringmaster")

__all__ = ["Checkpoint", "Restored", "available", "restore", "resume_step", "save", "wait", "wanted"]


Resplit = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]]


class Restored(NamedTuple):
    """What `restore` found."""

    step: int
    extra: Dict[str, Any]


# ---- states as tensors and JSON ------------------------------------------------------------------------------------------


def _to_array(tensor: torch.Tensor) -> np.ndarray:
    host = tensor.detach().cpu().contiguous()
    if host.dtype == torch.bfloat16:  # numpy has none: two bytes each
        return host.view(torch.int16).numpy().view("V2")
    return host.numpy()


def _to_tensor(array: np.ndarray) -> torch.Tensor:
    if array.dtype.name in ("void16", "bfloat16"):
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _encode(value: Any, path: str, tensors: Dict[str, np.ndarray]) -> Any:
    """A value as JSON; its tensors go to `tensors`, by their paths."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_complex():
            raise ValueError(f"checkpoint: {path} is a tensor of {value.dtype} and {value.layout}, which cannot be saved")
        tensors[path] = _to_array(value)
        return {"tensor": path}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, (str, int)):
                raise ValueError(f"checkpoint: {path} has a key {key!r}; keys are texts or whole numbers")
        return {"dict": [[key, _encode(entry, f"{path}/{key}", tensors)] for key, entry in value.items()]}
    if isinstance(value, (list, tuple)):
        entries = [_encode(entry, f"{path}/{i}", tensors) for i, entry in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": entries}
    if isinstance(value, (np.generic,)):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"checkpoint: {path} is of type {type(value).__name__}, which cannot be saved; give tensors, numbers and texts")


def _decode(tree: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    if not isinstance(tree, dict):
        return tree
    (kind, content), *_ = tree.items()
    if kind == "tensor":
        return _to_tensor(tensors[content])
    if kind == "dict":
        return {key: _decode(entry, tensors) for key, entry in content}
    entries = [_decode(entry, tensors) for entry in content]
    return tuple(entries) if kind == "tuple" else entries


def _generators() -> Dict[str, Any]:
    """The state of this process's random generators."""

    def text(state: torch.Tensor) -> str:
        return base64.b64encode(state.numpy().tobytes()).decode()

    python = random.getstate()
    states: Dict[str, Any] = {"python": [python[0], list(python[1]), python[2]], "torch": text(torch.get_rng_state())}
    if torch.cuda.is_available():
        states["cuda"] = text(torch.cuda.get_rng_state())
    return states


def _set_generators(states: Mapping[str, Any]) -> None:
    def state(text: str) -> torch.Tensor:
        return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)

    version, numbers, following = states["python"]
    random.setstate((version, tuple(numbers), following))
    torch.set_rng_state(state(states["torch"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(state(states["cuda"]))


# ---- the calls ---------------------------------------------------------------------------------------------------------


def save(step: int, parts: Mapping[str, Any], extra: Optional[Mapping[str, Any]] = None) -> bool:
    """Stages the state of this step: a copy in memory, no disk. Every rank calls it with the same step.

    Args:
        step: the number of training steps done; what `restore` will give back.
        parts: objects with state_dict(), by name: model, optimizer, scheduler, sampler. Alike on all ranks; of what differs (running
            statistics of batch normalization) one rank's is saved.
        extra: this rank's own values, anything that JSON can hold; its random generators are saved in any case.

    Returns:
        True: staged. False: skipped, because both slots still wait to be committed, or because there is no sidecar.

    Raises:
        ValueError: a state that cannot be saved.
        PeerLostError: the sidecar is gone.
        RingmasterError: the sidecar refuses; it says why.
    """
    if not available():
        return _checkpoint.save(step, {})  # says what is wrong, if anything is
    tensors: Dict[str, np.ndarray] = {}
    trees = {name: _encode(part.state_dict(), name, tensors) for name, part in parts.items()}
    return _checkpoint.save(step, tensors, {"state": trees, "generators": _generators(), "user": dict(extra or {})})


def restore(parts: Mapping[str, Any], generators: bool = True, resplit: Optional[Resplit] = None) -> Optional[Restored]:
    """Sets objects to the state that the ranks have agreed to resume from. Every rank calls it, or none.

    Args:
        parts: objects with load_state_dict(), by the names that they were saved under.
        generators: whether this process's random generators (Python's and torch's) are set, too; not from a checkpoint of another
            number of ranks.
        resplit: for such a checkpoint: called with the `extra` of all ranks that saved, in their order, gives this rank's. Without it
            what they had alike stays.

    Returns:
        (step, extra); None: start from scratch, nothing was changed.

    Raises:
        ValueError: the checkpoint has other parts.
        RingmasterError: it is damaged or incomplete.
    """

    def of_all(extras: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
        """Of another number of ranks: the state is anyone's, the generators are nobody's."""
        users = [extra.get("user", {}) for extra in extras]
        if generators and _basics.rank() == 0:
            log.warning("the checkpoint was saved by %d ranks and is restored by %d: random generators go on as they are", len(extras), _basics.size())
        return {"state": extras[0].get("state"), "user": dict((resplit or _checkpoint.keep_common)(users))}

    found = _checkpoint.restore(of_all)
    if found is None:
        return None
    trees = found.extra.get("state")
    if not isinstance(trees, dict) or set(trees) != set(parts):
        saved = sorted(trees) if isinstance(trees, dict) else "none of torch"
        raise ValueError(f"the checkpoint of step {found.step} has the parts {saved}, asked for are {sorted(parts)}")
    for name, part in parts.items():
        part.load_state_dict(_decode(trees[name], found.tensors))
    if generators and "generators" in found.extra:
        _set_generators(found.extra["generators"])
    own = found.extra.get("user", {})
    return Restored(found.step, own if isinstance(own, dict) else {})


class Checkpoint:
    """Saves every so often, and resumes from the last committed save.

    Args:
        every_steps: save after each so many steps; from RINGMASTER_CHECKPOINT_EVERY_STEPS when None; 0: not by steps.
        every_seconds: save when so much time has passed; from RINGMASTER_CHECKPOINT_EVERY_SECONDS when None; 0: not by time.
        agree_every: ranks agree every so many steps on whether time has passed or the job has asked for a save.
        extra: a function that gives this rank's own values to keep, anything that JSON can hold.
        resplit: what becomes of them with another number of ranks; see `restore`.
        parts: objects with state_dict() and load_state_dict(), by name.

    Attributes:
        restored_extra: what `extra` gave when the restored checkpoint was saved.
    """

    def __init__(
        self,
        *,
        every_steps: Optional[int] = None,
        every_seconds: Optional[float] = None,
        agree_every: int = 10,
        extra: Optional[Callable[[], Mapping[str, Any]]] = None,
        resplit: Optional[Resplit] = None,
        **parts: Any,
    ):
        for name, part in parts.items():
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise ValueError(f"checkpoint: {name} is of type {type(part).__name__}, which has no state_dict")
        self._cadence = Cadence(every_steps, every_seconds, agree_every)
        self.extra, self.resplit, self.parts = extra, resplit, parts
        self.restored_extra: Dict[str, Any] = {}

    def restore(self) -> int:
        """Sets the parts to the last committed state, if there is one. Every rank calls it.

        Returns:
            The number of steps that are done; 0: from scratch.

        Raises:
            ValueError, RingmasterError: as `restore` of this module.
        """
        found = restore(self.parts, resplit=self.resplit)
        self._cadence.begin(None if found is None else found.step)
        if found is None:
            return 0
        self.restored_extra = found.extra
        return found.step

    def save(self, step: int) -> bool:
        """Saves now. Every rank calls it after the same step.

        Returns:
            Whether it was staged; what stands in the way of a save is logged and does not stop training.

        Raises:
            ValueError: a state that cannot be saved.
            PeerLostError: the sidecar is gone.
        """

        def begin() -> bool:
            return save(step, self.parts, self.extra() if self.extra is not None else None)

        return self._cadence.save(step, begin, passed_on=(_core.PeerLostError, ValueError))

    def step(self, step: int) -> bool:
        """So many steps are done: saves when it is time. Every rank calls it after every step.

        Returns:
            Whether a checkpoint was staged.
        """
        return self._cadence.due(step) and self.save(step)
