"""DistributedOptimizer: an optimizer of torch that applies the gradients of all ranks."""

import contextlib
import functools
import os
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Type, Union

import torch

from .._basics import Adasum, Average, size
from .._core import InvalidError
from ..process_sets import ProcessSet, global_process_set
from .compression import Compression, Compressor
from .functions import broadcast_object
from .mpi_ops import allreduce_async_, grouped_allreduce_async_, sparse_allreduce_async, synchronize

Parameter = torch.nn.Parameter

RACE = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or optimizer.synchronize(). "
    "This is prohibited as it can cause a race condition."
)


def _named(optimizer: Any, named_parameters: Optional[Iterable[Tuple[str, Any]]]) -> Dict[Any, str]:
    """The name of every parameter.

    Raises:
        ValueError: a name that is there twice, or a parameter without one.
    """
    if named_parameters is None:
        return {
            p: f"allreduce.noname.{i}.{j}" for i, group in enumerate(optimizer.param_groups) for j, p in enumerate(group["params"])
        }
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced by model.named_parameters()."
        )
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"Parameter names in named_parameters must be unique. Found duplicates: {', '.join(twice)}")
    found = {p: name for name, p in pairs}
    unnamed = [
        f"group {i} parameter {j} of shape {tuple(p.shape)}"
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
        if p not in found
    ]
    if unnamed:
        raise ValueError(f"named_parameters was specified, but one or more model parameters were not named: {'; '.join(unnamed)}")
    return found


def _after_gradient(parameter: Any, hook: Callable[[Any], None]) -> Any:
    """Calls the hook whenever a backward pass has added to the gradient. What is returned has to be kept."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return parameter.register_post_accumulate_grad_hook(lambda p: hook(p))
    accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]  # before torch 2.1
    accumulator.register_hook(lambda *_: hook(parameter))
    return accumulator


def _in_parts(parameters: List[Any], parts: int) -> List[List[Any]]:
    length, longer = divmod(len(parameters), parts)
    ends = [(i + 1) * length + min(i + 1, longer) for i in range(parts)]
    return [parameters[begin:end] for begin, end in zip([0, *ends], ends) if end > begin]


class _Pending:
    """Gradients on their way: of one parameter, or of a group."""

    def __init__(self, parameters: Sequence[Any], sent: Sequence[Any], contexts: Sequence[Any], handle: Any):
        self.parameters, self.sent, self.contexts, self.handle = parameters, sent, contexts, handle


class _Distributed:
    """The methods that a DistributedOptimizer has before those of its optimizer."""

    param_groups: List[Dict[str, Any]]

    def _begin(
        self,
        names: Dict[Any, str],
        compression: Type[Compressor],
        passes: int,
        op: int,
        predivide: float,
        groups: Any,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self._parameter_names = names
        self._compression = compression
        self.backward_passes_per_step = passes
        self.op, self.gradient_predivide_factor = op, predivide
        self.sparse_as_dense, self.process_set = sparse_as_dense, process_set
        self._passes_left = dict.fromkeys(names, passes)
        self._pending: Dict[Tuple[Any, ...], _Pending] = {}
        self._waiting: Set[Any] = set()  # gradients that are ready, but not all of their group
        self._synchronized, self._should_synchronize = False, True
        self._hooks: List[Any] = []
        self._group_of: Dict[Any, Tuple[Any, ...]] = {}
        if process_set.included() and (size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"):
            self._register_hooks(groups)

    def _register_hooks(self, groups: Any) -> None:
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        for members in self._form_groups(parameters, groups):
            for p in members:
                self._group_of[p] = members
        self._hooks = [_after_gradient(p, self._gradient_is_there) for p in parameters]

    def _form_groups(self, parameters: List[Any], groups: Any) -> List[Tuple[Any, ...]]:
        if groups is None or groups == 0:
            return [(p,) for p in parameters]
        order = broadcast_object([self._parameter_names[p] for p in parameters], min(self.process_set.ranks or [0]), None, self.process_set)
        place = {name: at for at, name in enumerate(order)}
        parameters = sorted(parameters, key=lambda p: place[self._parameter_names[p]])
        if isinstance(groups, int):
            return [tuple(part) for part in _in_parts(parameters, groups)]
        known, grouped = set(parameters), set()
        formed = []
        for group in groups:
            members = tuple(p for p in group if p in known)
            grouped.update(members)
            formed.append(members)
        return [members for members in formed if members] + [(p,) for p in parameters if p not in grouped]

    # ---- gradients on their way ----

    def _gradient_is_there(self, parameter: Any) -> None:
        members = self._group_of[parameter]
        if self._passes_left[parameter] <= 0:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step times before call to step(). "
                "Increase backward_passes_per_step to accumulate gradients locally."
            )
        assert not parameter.grad.requires_grad, "gradients that have gradients (create_graph=True) cannot be reduced"
        self._passes_left[parameter] -= 1
        self._waiting.add(parameter)
        if all(self._passes_left[p] == 0 for p in members):
            self._send(members)

    def _send(self, members: Tuple[Any, ...]) -> None:
        self._waiting.difference_update(members)
        for p in members:
            if p.grad is None:  # another rank may have computed it: forward functions can choose
                p.grad = torch.zeros_like(p)
        name = self._parameter_names[members[0]]
        if members[0].grad.is_sparse and not self.sparse_as_dense:
            for p in members:
                finish = sparse_allreduce_async(p.grad, self._parameter_names[p], self.op, self.process_set)
                self._pending[(p,)] = _Pending((p,), (None,), (None,), finish)
            return
        dense = [p.grad.to_dense() if p.grad.is_sparse else p.grad for p in members]
        sent, contexts = zip(*[self._compression.compress(gradient) for gradient in dense])
        sent = [tensor if tensor.is_contiguous() else tensor.contiguous() for tensor in sent]
        before = 1.0 / self.gradient_predivide_factor if self.op == Average else 1.0
        after = self.gradient_predivide_factor if self.op == Average else 1.0
        options: Dict[str, Any] = {
            "name": name, "op": self.op, "prescale_factor": before, "postscale_factor": after, "process_set": self.process_set,
        }  # fmt: skip
        handle = allreduce_async_(sent[0], **options) if len(members) == 1 else grouped_allreduce_async_(sent, **options)
        self._pending[members] = _Pending(members, sent, contexts, handle)

    def _take(self, pending: _Pending) -> None:
        if callable(pending.handle):  # sparse
            (parameter,) = pending.parameters
            parameter.grad = pending.handle()
            return
        synchronize(pending.handle)
        for parameter, tensor, context in zip(pending.parameters, pending.sent, pending.contexts):
            reduced = self._compression.decompress(tensor, context)
            if parameter.grad.is_sparse:
                parameter.grad = reduced.to_sparse()
            elif reduced is not parameter.grad:
                parameter.grad.copy_(reduced)

    def synchronize(self) -> None:
        """Waits until the gradients are those of all ranks; `step` does it otherwise. To clip them, for instance:

            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            with optimizer.skip_synchronize():
                optimizer.step()

        Raises:
            HorovodInternalError: a rank is gone, or ranks disagree.
        """
        begun = {p for members in self._pending for p in members}
        for members in dict.fromkeys(self._group_of.values()):  # what no backward pass has reached
            if not begun.intersection(members):
                self._send(members)
        pending, self._pending = list(self._pending.values()), {}
        try:
            with torch.no_grad():
                for entry in pending:
                    self._take(entry)
        finally:
            self._forget()
        self._synchronized = True

    def _forget(self) -> None:
        self._pending = {}
        self._waiting.clear()
        for p in self._passes_left:
            self._passes_left[p] = self.backward_passes_per_step

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """In this context `step` does not synchronize: `synchronize` was called."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    # ---- what the optimizer has, too ----

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Waits for the gradients of all ranks, then does what the optimizer does. Those that a closure computes are reduced as well."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize(). This can "
                    "cause training slowdown. You may want to consider using optimizer.skip_synchronize() context if you use "
                    "optimizer.synchronize() in your code.",
                    stacklevel=2,
                )
            if closure is None or self._pending or self._waiting:
                self.synchronize()
        self._synchronized = False
        if closure is None:
            return super().step()  # type: ignore[misc]

        def reduced() -> Any:
            with torch.enable_grad():
                loss = closure()
            if self._pending or self._waiting:
                self.synchronize()
                self._synchronized = False
            return loss

        return super().step(reduced)  # type: ignore[misc]

    def zero_grad(self, *arguments: Any, **options: Any) -> Any:
        """The optimizer's own. AssertionError while gradients are on their way."""
        if self._pending:
            raise AssertionError(RACE)
        return super().zero_grad(*arguments, **options)  # type: ignore[misc]

    def load_state_dict(self, *arguments: Any, **options: Any) -> Any:
        """The optimizer's own; what is on its way is given up."""
        self._forget()
        self._synchronized, self._should_synchronize = False, True
        return super().load_state_dict(*arguments, **options)  # type: ignore[misc]

    def set_backward_passes_per_step(self, passes: int) -> None:
        """How many backward passes there are before each `step`: the gradients are reduced in the last one."""
        if passes <= 0:
            raise ValueError("backward_passes_per_step must be > 0")
        self.backward_passes_per_step = passes
        for p in self._passes_left:
            self._passes_left[p] = passes


class _DistributedAdasum(_Distributed):
    """Combines by Adasum what the ranks' own steps have changed, not the gradients: learning rate and momentum stay each rank's."""

    def _register_hooks(self, groups: Any) -> None:
        """Nothing happens before `step`."""

    def synchronize(self) -> None:
        """Nothing: the steps are combined after they are made."""

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raises AssertionError: there is nothing to skip."""
        raise AssertionError("Skipping synchronization is not supported when using Adasum optimizer.")
        yield

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """The optimizer's own step on this rank, then the sum of all ranks' changes by Adasum."""
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        starts = [p.detach().clone() for p in parameters]
        loss = super(_Distributed, self).step(closure)  # type: ignore[misc]
        with torch.no_grad():
            waiting = []
            for p, start in zip(parameters, starts):
                small, context = self._compression.compress((p - start).contiguous())
                waiting.append((small, context, allreduce_async_(small, name=self._parameter_names[p], op=Adasum, process_set=self.process_set)))
            for p, start, (small, context, handle) in zip(parameters, starts, waiting):
                synchronize(handle)
                p.copy_(start + self._compression.decompress(small, context))
        return loss


@functools.lru_cache(maxsize=None)
def _class_of(base: type, methods: type) -> type:
    # Of the name and module of its base: schedulers and checkpoints see the optimizer that they know.
    return type(base.__name__, (methods, base), {"__module__": base.__module__, "__doc__": base.__doc__})


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, Any]]] = None,
    compression: Type[Compressor] = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Union[None, int, List[List[torch.Tensor]]] = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """An optimizer that applies the gradients of all ranks. They are reduced while the backward pass goes on; `step` waits for them.

    Args:
        optimizer: any of torch.optim; its state and options go on in what is returned.
        named_parameters: `model.named_parameters()`; names that are the same on all ranks. None: by their places.
        compression: Compression.none or Compression.fp16.
        backward_passes_per_step: how many backward passes add up before each `step`.
        op: Average (default), Sum, Min, Max, Product; or Adasum, which combines steps in place of gradients.
        gradient_predivide_factor: splits the averaging: before the sum by this, after it by size / this.
        num_groups: the older name of `groups`.
        groups: how many requests the gradients make up, or which gradients go in one: lists of parameters. None: one each.
        sparse_as_dense: sparse gradients travel as dense tensors.
        process_set: whose ranks take part; the others step alone.

    Returns:
        An optimizer of a class derived from the class of `optimizer`, which is not to be used any more.

    Raises:
        ValueError: names that are missing or there twice, or arguments that cannot be.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if gradient_predivide_factor == 0:
        raise ValueError("gradient_predivide_factor must not be 0")
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if num_groups:
        warnings.warn("Parameter `num_groups` has been replaced by `groups`.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    if not (groups is None or isinstance(groups, int) and groups >= 0 or isinstance(groups, list)):
        raise ValueError("groups should be a non-negative integer or a list of list of torch.Tensor.")
    if isinstance(groups, list):
        members = [id(p) for group in groups for p in group]
        if len(members) != len(set(members)):
            raise ValueError("groups: a parameter can be in one of them only")
    if isinstance(optimizer, _Distributed):
        raise InvalidError("this optimizer is distributed already")
    names = _named(optimizer, named_parameters)
    cls = _class_of(type(optimizer), _DistributedAdasum if op == Adasum and size() > 1 else _Distributed)
    distributed = cls.__new__(cls)
    # A scheduler that wraps `step` has put its own one there.
    distributed.__dict__.update({key: value for key, value in vars(optimizer).items() if key != "step"})
    distributed._begin(names, compression, backward_passes_per_step, op, gradient_predivide_factor, groups, sparse_as_dense, process_set)
    return distributed
