"""Reducing gradients: what the optimizers and the tape have in common."""

from typing import Any, Dict, List, Optional, Sequence, Type

import tensorflow as tf

from .. import _basics
from .._basics import Average, ReduceOp, Sum
from ..process_sets import global_process_set, set_number
from .collectives import grouped_allreduce, tf_variable
from .compression import Compressor


class Reduction:
    """How gradients are reduced.

    Args:
        kind: what reduces, for the names.
        name: the same on all ranks; counted when None.
        compression, sparse_as_dense, op, process_set: as in DistributedOptimizer.
        gradient_predivide_factor: splits the averaging: before the sum by this, after it by size / this.
        num_groups: into how many packed requests the gradients go.
        groups: a number, as num_groups; or lists of variables, each of which is one request.
        scale_local_gradients: divide the gradients of local variables by the number of ranks, as if the others had sent zeros.
        local_layers: layers whose variables every rank keeps to itself.

    Raises:
        ValueError: a predivide factor with another op than Average, groups that cannot be, a set that is not registered.
    """

    def __init__(
        self,
        kind: str,
        name: Optional[str],
        compression: Type[Compressor],
        sparse_as_dense: bool,
        op: Optional[int],
        gradient_predivide_factor: float,
        num_groups: int = 0,
        groups: Any = None,
        process_set: Any = global_process_set,
        scale_local_gradients: bool = True,
        local_layers: Any = None,
    ):
        self.op: ReduceOp = _basics.which_op(op, None)
        if gradient_predivide_factor != 1.0 and self.op != Average:
            raise ValueError("gradient_predivide_factor not supported with op != Average")
        if groups is not None and not isinstance(groups, (list, tuple)):
            groups, num_groups = None, groups
        if not isinstance(num_groups, int) or num_groups < 0:
            raise ValueError("num_groups must be a non-negative integer, groups that or a list of lists of variables")
        if groups is not None and not all(isinstance(group, (list, tuple)) for group in groups):
            raise ValueError("groups should be a list of lists of variables")
        self.process_set = process_set or global_process_set
        # Counted per set: ranks outside of it do not come by here.
        self.name = _basics.auto_name(kind, name, set_number(self.process_set))
        self.compression = compression
        self.sparse_as_dense = sparse_as_dense
        self.predivide = gradient_predivide_factor
        self.num_groups = num_groups
        self.groups: List[List[Any]] = [list(group) for group in groups or []]
        self.scale_local_gradients = scale_local_gradients
        self.local_layers = list(local_layers or [])
        self._local: Dict[int, Any] = {}

    def register_local(self, variable: Any) -> None:
        """The gradients of this variable stay on this rank."""
        self._local[id(tf_variable(variable))] = variable

    def is_local(self, variable: Any) -> bool:
        """Whether its gradients stay on this rank."""
        key = id(tf_variable(variable))
        in_layers = (weight for layer in self.local_layers for weight in layer.trainable_weights)
        return key in self._local or any(id(tf_variable(weight)) == key for weight in in_layers)

    def size(self) -> int:
        """How many ranks take part."""
        number = set_number(self.process_set)
        return _basics.size() if number == 0 else self.process_set.size()

    def __call__(self, gradients: Sequence[Any], variables: Sequence[Any] = ()) -> List[Any]:
        """The gradients reduced over all ranks, in their order; None stays None. Among one rank they stay as they are."""
        ranks = self.size()
        if ranks == 1:
            return list(gradients)
        variables = list(variables) or [None] * len(gradients)
        reduced = list(gradients)
        present = []
        for index, (gradient, variable) in enumerate(zip(gradients, variables)):
            if gradient is None:
                continue
            if variable is not None and self.is_local(variable):
                if self.scale_local_gradients:
                    reduced[index] = _scaled(gradient, 1.0 / ranks)
                continue
            present.append(index)
            if self.sparse_as_dense:
                reduced[index] = tf.convert_to_tensor(gradient)
        for group, indices in enumerate(self._groups_of(present, variables)):
            self._reduce(reduced, indices, f"{self.name}.{group}", ranks)
        return reduced

    def _groups_of(self, present: List[int], variables: Sequence[Any]) -> List[List[int]]:
        if self.groups:
            places = {id(tf_variable(variable)): index for index, variable in enumerate(variables) if variable is not None}
            named = [[places[id(tf_variable(v))] for v in group if id(tf_variable(v)) in places] for group in self.groups]
            named = [[index for index in group if index in present] for group in named]
            taken = {index for group in named for index in group}
            return [group for group in named if group] + [[index] for index in present if index not in taken]
        count = max(1, min(self.num_groups, len(present)))
        return [present[len(present) * group // count : len(present) * (group + 1) // count] for group in range(count)]

    def _reduce(self, values: List[Any], indices: List[int], name: str, ranks: int) -> None:
        divides = self.predivide != 1.0
        slices = [index for index in indices if isinstance(values[index], tf.IndexedSlices)]
        dense = [index for index in indices if index not in slices] if divides else indices
        parts: List[Any] = [(dense, name, divides)]
        if divides and slices:
            parts.append((slices, f"{name}.slices", False))  # an average all the same: there is no overflow to be avoided
        for part, part_name, scaled in parts:
            results = grouped_allreduce(
                [values[index] for index in part],
                op=Sum if scaled else self.op,
                compression=self.compression,
                prescale_factor=1.0 / self.predivide if scaled else 1.0,
                postscale_factor=self.predivide / ranks if scaled else 1.0,
                process_set=self.process_set,
                ignore_name_scope=True,
                name=part_name,
            )
            for index, result in zip(part, results):
                values[index] = result


def _scaled(gradient: Any, factor: float) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_scaled(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
