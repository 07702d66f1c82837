"""Optimizers that apply the gradients of all ranks: Keras 3, tf_keras (Keras 2) and tf.compat.v1."""

import functools
from typing import Any, Dict, List, Optional, Type

import tensorflow as tf

from ..process_sets import ProcessSet, global_process_set
from .aggregation import Aggregation
from .collectives import tf_variable
from .compression import Compression, Compressor
from .gradients import Reduction


class Distribution:
    """What an optimizer needs to know to be distributed: how gradients are reduced, and after how many passes."""

    def __init__(self, reduction: Reduction, aggregation: Optional[Aggregation]):
        self.reduction = reduction
        self.aggregation = aggregation

    def apply(self, optimizer: Any, gradients: List[Any], variables: List[Any], apply: Any) -> Any:
        """Reduces the gradients and calls `apply` with them; with an aggregation only in the last pass of a step."""
        if self.aggregation is None:
            return apply(self.reduction(gradients, variables))
        with tf.init_scope():
            build_variables(optimizer, variables)  # they cannot be made in a branch of the graph

        def skip() -> None:
            iterations = getattr(optimizer, "iterations", None)
            if iterations is not None:
                tf_variable(iterations).assign_add(1)

        return self.aggregation.step(gradients, variables, lambda sums: apply(self.reduction(sums, variables)), skip)


def build_variables(optimizer: Any, variables: List[Any]) -> None:
    """Makes the slots of a Keras optimizer, whichever Keras it is of."""
    if hasattr(optimizer, "build"):
        if not getattr(optimizer, "built", False) and not getattr(optimizer, "_built", False):
            optimizer.build(variables)
    elif hasattr(optimizer, "_create_all_weights"):
        optimizer._create_all_weights(variables)


def _is_keras_3(optimizer: Any) -> bool:
    return hasattr(optimizer, "apply") and hasattr(optimizer, "stateless_apply")


def _register_local_var(self: Any, variable: Any) -> None:
    """The gradients of this variable stay on this rank."""
    self._ringmaster.reduction.register_local(variable)


def _keras_3_methods(base: type) -> Dict[str, Any]:
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        """Reduces the gradients over all ranks, then applies them."""
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        plain = functools.partial(base.apply, self, trainable_variables=trainable_variables)  # type: ignore[attr-defined]
        return self._ringmaster.apply(self, list(grads), variables, plain)

    return {"apply": apply}


def _keras_2_methods(base: type) -> Dict[str, Any]:
    def apply_gradients(self: Any, grads_and_vars: Any, *arguments: Any, **options: Any) -> Any:
        """Reduces the gradients over all ranks, then applies them."""
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]

        def plain(reduced: List[Any]) -> Any:
            return base.apply_gradients(self, list(zip(reduced, variables)), *arguments, **options)  # type: ignore[attr-defined]

        return self._ringmaster.apply(self, [gradient for gradient, _ in pairs], variables, plain)

    return {"apply_gradients": apply_gradients}


@functools.lru_cache(maxsize=None)
def _distributed_class(base: type, keras_3: bool) -> type:
    methods = _keras_3_methods(base) if keras_3 else _keras_2_methods(base)
    methods["register_local_var"] = _register_local_var
    # Of the same name and module as its base: a saved model names the plain optimizer and loads without us.
    return type(base.__name__, (base,), {**methods, "__module__": base.__module__, "__doc__": base.__doc__})


class _DistributedV1Optimizer(tf.compat.v1.train.Optimizer):
    """Wraps a tf.compat.v1 optimizer: compute_gradients gives the gradients of all ranks."""

    def __init__(self, optimizer: tf.compat.v1.train.Optimizer, distribution: Distribution, name: str, use_locking: bool):
        super().__init__(name=name, use_locking=use_locking)
        self._optimizer = optimizer
        self._ringmaster = distribution
        self._due: Any = None  # whether this pass is the last of a step

    def compute_gradients(self, *arguments: Any, **options: Any) -> Any:
        """As the wrapped optimizer's, reduced over all ranks."""
        pairs = self._optimizer.compute_gradients(*arguments, **options)
        gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        aggregation = self._ringmaster.aggregation
        if aggregation is None:
            return list(zip(self._ringmaster.reduction(gradients, variables), variables))
        return list(zip(self._aggregated(aggregation, gradients, variables), variables))

    def _aggregated(self, aggregation: Aggregation, gradients: List[Any], variables: List[Any]) -> List[Any]:
        self._due, sums = aggregation.add(gradients, variables)
        present = [index for index, total in enumerate(sums) if total is not None]

        def reduce() -> List[Any]:
            reduced = self._ringmaster.reduction(aggregation.value(sums), variables)
            return [reduced[index] for index in present]

        # The sums are read before they are begun anew.
        results = tf.cond(self._due, reduce, lambda: [tf.identity(sums[index]) for index in present])
        with tf.control_dependencies(results):
            resets = aggregation.reset(self._due)
        with tf.control_dependencies([tf.convert_to_tensor(reset) for reset in resets]):
            results = [tf.identity(result) for result in results]
        places = dict(zip(present, results))
        return [places.get(index) for index in range(len(gradients))]

    def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Optional[str] = None) -> Any:
        """The wrapped optimizer's own; with backward_passes_per_step only in the last pass. The global step counts every pass."""
        pairs = list(grads_and_vars)
        if self._due is None:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        def skip() -> Any:
            with tf.control_dependencies([gradient for gradient, _ in pairs if gradient is not None]):
                return tf.no_op() if global_step is None else tf.compat.v1.assign_add(global_step, 1).op

        def apply() -> Any:
            return self._optimizer.apply_gradients(pairs, global_step=global_step, name=name)

        if tf.executing_eagerly():
            return apply() if bool(self._due) else global_step.assign_add(1) if global_step is not None else None
        return tf.cond(self._due, apply, skip)

    def register_local_var(self, variable: Any) -> None:
        """The gradients of this variable stay on this rank."""
        self._ringmaster.reduction.register_local(variable)

    def get_slot(self, *arguments: Any, **options: Any) -> Any:
        """The wrapped optimizer's own."""
        return self._optimizer.get_slot(*arguments, **options)

    def get_slot_names(self, *arguments: Any, **options: Any) -> Any:
        """The wrapped optimizer's own."""
        return self._optimizer.get_slot_names(*arguments, **options)

    def variables(self, *arguments: Any, **options: Any) -> Any:
        """The wrapped optimizer's own."""
        return self._optimizer.variables(*arguments, **options)


def _is_distributed(optimizer: Any) -> bool:
    return getattr(optimizer, "_ringmaster", None) is not None


def distribute(optimizer: Any, reduction: Reduction, passes: int, average: bool, name: Optional[str], use_locking: bool) -> Any:
    """Makes an optimizer apply what `reduction` gives; see DistributedOptimizer."""
    if _is_distributed(optimizer):
        raise ValueError("this optimizer is distributed already")
    aggregation = None if passes == 1 else Aggregation(passes, average)
    distribution = Distribution(reduction, aggregation)
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return _DistributedV1Optimizer(optimizer, distribution, name or f"Distributed{type(optimizer).__name__}", use_locking)
    if not hasattr(optimizer, "apply_gradients"):
        raise ValueError(f"{type(optimizer).__name__} is no optimizer of Keras or tf.compat.v1")
    optimizer.__class__ = _distributed_class(type(optimizer), _is_keras_3(optimizer))
    # Not through __setattr__, which tracks what it is given as part of the model.
    object.__setattr__(optimizer, "_ringmaster", distribution)
    return optimizer


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
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Makes an optimizer apply the gradients of all ranks.

    Args:
        optimizer: of Keras 3, tf_keras (its legacy ones too) or tf.compat.v1.train. A Keras optimizer is changed in place and
            keeps its state; clipping and weight decay see the reduced gradients.
        name: the same on all ranks; counted when None.
        use_locking: of tf.compat.v1 optimizers.
        device_dense, device_sparse: taken for Horovod's sake.
        compression: Compression.none, Compression.fp16, or a Compressor.
        sparse_as_dense: IndexedSlices become dense tensors before they travel.
        backward_passes_per_step: gradients of so many passes are added up before they are reduced and applied.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        gradient_predivide_factor: splits the averaging: before the sum by this, after it by size / this.
        average_aggregated_gradients: divide what several passes have added up by their number.
        num_groups: into how many packed requests the gradients go; 0 and 1: one.
        groups: a number, as num_groups; or lists of variables, each of which is one request.
        process_set: whose ranks take part.
        scale_local_gradients: divide the gradients of variables that `register_local_var` has named by the number of ranks.

    Returns:
        The optimizer to compile the model with.

    Raises:
        ValueError: no optimizer that we know, it is distributed already, or an argument that cannot be.
    """
    reduction = Reduction(
        "DistributedOptimizer",
        name,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    return distribute(optimizer, reduction, backward_passes_per_step, average_aggregated_gradients, name, use_locking)


def PartialDistributedOptimizer(
    optimizer: Any,
    name: Optional[str] = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Optional[int] = None,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """DistributedOptimizer for a model some layers of which every rank keeps to itself.

    Args:
        local_layers: a layer or several, whose gradients are not reduced.
        scale_local_gradients: divide their gradients by the number of ranks.

    The other arguments, what is returned and what is raised are those of DistributedOptimizer.
    """
    reduction = Reduction(
        "DistributedOptimizer",
        name,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        local_layers=layers_of(local_layers),
    )
    return distribute(optimizer, reduction, backward_passes_per_step, average_aggregated_gradients, name, False)


def layers_of(local_layers: Any) -> List[Any]:
    """A layer, or several, or none, as a list.

    Raises:
        ValueError: something that has no weights.
    """
    if local_layers is None:
        return []
    layers = list(local_layers) if isinstance(local_layers, (list, tuple, set)) else [local_layers]
    for layer in layers:
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers: {layer!r} is no Keras layer")
    return layers
