"""Optimizers that apply the gradients of all ranks: Keras 3, tf_keras (Keras 2) and tf.compat.v1."""

import functools
from typing import Any, Dict, Optional, Type

import tensorflow as tf

from .compression import Compression, Compressor
from .gradients import Reduction, make_reduction, refuse


def _is_keras_3(optimizer: Any) -> bool:
    return hasattr(optimizer, "apply") and hasattr(optimizer, "stateless_apply")


def _keras_3_methods(base: type) -> Dict[str, Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduces the gradients over all ranks, then applies them."""
        return base.apply(self, self._ringmaster_reduction(list(grads)), trainable_variables)  # type: ignore[attr-defined]

    return {"apply": apply}


def _keras_2_methods(base: type) -> Dict[str, Any]:
    def apply_gradients(self: Any, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        """Reduces the gradients over all ranks, then applies them."""
        pairs = list(grads_and_vars)
        reduced = self._ringmaster_reduction([gradient for gradient, _ in pairs])
        applied = list(zip(reduced, [variable for _, variable in pairs]))
        return base.apply_gradients(self, applied, *arguments, **options)  # type: ignore[attr-defined]

    return {"apply_gradients": apply_gradients}


@functools.lru_cache(maxsize=None)
def _distributed_class(base: type, keras_3: bool) -> type:
    methods = _keras_3_methods(base) if keras_3 else _keras_2_methods(base)
    # Of the same name and module as its base: a saved model names the plain optimizer and loads without us.
    return type(base.__name__, (base,), {**methods, "__module__": base.__module__, "__doc__": base.__doc__})


class _DistributedV1Optimizer(tf.compat.v1.train.Optimizer):
    """Wraps a tf.compat.v1 optimizer: compute_gradients gives the gradients of all ranks."""

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer, reduction: Reduction, name: str, use_locking: bool):
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._reduction = reduction

    def compute_gradients(self, *arguments: Any, **options: Any) -> Any:
        """As the wrapped optimizer's, reduced over all ranks."""
        pairs = self._optimizer.compute_gradients(*arguments, **options)
        reduced = self._reduction([gradient for gradient, _ in pairs])
        return list(zip(reduced, [variable for _, variable in pairs]))

    def apply_gradients(self, *arguments: Any, **options: Any) -> Any:
        """The wrapped optimizer's own."""
        return self._optimizer.apply_gradients(*arguments, **options)

    def get_slot(self, *arguments: Any, **options: Any) -> Any:
        """The wrapped optimizer's own."""
        return self._optimizer.get_slot(*arguments, **options)

    def get_slot_names(self, *arguments: Any, **options: Any) -> Any:
        """The wrapped optimizer's own."""
        return self._optimizer.get_slot_names(*arguments, **options)

    def variables(self, *arguments: Any, **options: Any) -> Any:
        """The wrapped optimizer's own."""
        return self._optimizer.variables(*arguments, **options)


def DistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: Optional[int] = None,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer apply the gradients of all ranks.

    Args:
        optimizer: of Keras 3, tf_keras (its legacy ones too) or tf.compat.v1.train. A Keras optimizer is changed in place and
            keeps its state; clipping and weight decay see the reduced gradients.
        name: the same on all ranks; counted when None.
        use_locking: of tf.compat.v1 optimizers.
        device_dense, device_sparse, scale_local_gradients: taken for Horovod's sake.
        compression: Compression.none or Compression.fp16.
        sparse_as_dense: IndexedSlices become dense tensors before they travel.
        backward_passes_per_step, average_aggregated_gradients: leave them; Keras 3 has gradient_accumulation_steps.
        op: Average (default), Sum, Min, Max or Product.
        gradient_predivide_factor: splits the averaging: before the sum by this, after it by size / this.
        num_groups: into how many packed requests the gradients go; 0 and 1: one.
        groups, process_set: None.

    Returns:
        The optimizer to compile the model with.

    Raises:
        ValueError: no optimizer that we know, or it is distributed already.
        NotImplementedError: an argument that asks for what does not exist here.
    """
    refuse(
        backward_passes_per_step=(backward_passes_per_step, 1),
        average_aggregated_gradients=(average_aggregated_gradients, False),
        groups=(groups, None),
        process_set=(process_set, None),
    )
    if hasattr(optimizer, "_ringmaster_reduction") or isinstance(optimizer, _DistributedV1Optimizer):
        raise ValueError("this optimizer is distributed already")
    reduction = make_reduction(
        "DistributedOptimizer", name, compression, sparse_as_dense, op, gradient_predivide_factor, num_groups
    )
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _DistributedV1Optimizer(optimizer, reduction, name or f"Distributed{type(optimizer).__name__}", use_locking)
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(f"{type(optimizer).__name__} is no optimizer of Keras or tf.compat.v1")
    optimizer.__class__ = _distributed_class(type(optimizer), _is_keras_3(optimizer))
    # Not through __setattr__, which tracks what it is given as part of the model.
    object.__setattr__(optimizer, "_ringmaster_reduction", reduction)
    return optimizer
