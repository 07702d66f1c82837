"""TensorFlow's own strategies over the ring.

strategy = ringmaster.tensorflow.Strategy()            # in place of tf.distribute.MultiWorkerMirroredStrategy()

strategy = tf.distribute.MirroredStrategy(cross_device_ops=ringmaster.tensorflow.RingAllReduce())
"""

from typing import Any, Callable, List, Sequence, Tuple

import tensorflow as tf
from tensorflow.python.distribute import distribute_lib, distribute_utils, input_util, mirrored_strategy

from .. import _basics
from .._basics import Average, Sum
from .collectives import allgather, broadcast, grouped_allreduce

__all__ = ["RingAllReduce", "Strategy"]


class RingAllReduce(tf.distribute.CrossDeviceOps):
    """Reduces over the devices of this process, then over all ranks.

    Args:
        op: Average: what a strategy adds up is averaged over the ranks. This is right for tf.distribute.MirroredStrategy, whose loss
            knows of the devices of its own process alone. Sum where the loss is divided by the devices of all ranks.
    """

    def __init__(self, op: int = Average):
        super().__init__()
        self.op = _basics.which_op(op, None)
        self._local = tf.distribute.ReductionToOneDevice()

    @property
    def _num_between_graph_workers(self) -> int:
        return _basics.size()  # with more than one there is something to do for a single device too

    def reduce_implementation(self, reduce_op: Any, per_replica_value: Any, destinations: Any, options: Any) -> Any:
        """One value; see tf.distribute.CrossDeviceOps."""
        return self.batch_reduce_implementation(reduce_op, [(per_replica_value, destinations)], options)[0]

    def batch_reduce_implementation(self, reduce_op: Any, value_destination_pairs: Sequence[Tuple[Any, Any]], options: Any) -> List[Any]:
        """Several values, which travel packed; see tf.distribute.CrossDeviceOps."""
        local = [self._on_one_device(reduce_op, value, options) for value, _ in value_destination_pairs]
        over_ranks = Average if reduce_op == tf.distribute.ReduceOp.MEAN else self.op
        reduced = grouped_allreduce(local, op=over_ranks)
        return [self._local.broadcast_implementation(value, destinations) for value, (_, destinations) in zip(reduced, value_destination_pairs)]

    def _on_one_device(self, reduce_op: Any, value: Any, options: Any) -> Any:
        replicas = getattr(value, "values", (value,))
        if len(replicas) == 1:
            return replicas[0]
        with tf.device(replicas[0].device):
            return self._local.reduce_implementation(reduce_op, value, replicas[0].device, options)

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """Copies to the devices of this process; see tf.distribute.CrossDeviceOps."""
        return self._local.broadcast_implementation(tensor, destinations)

    def _gather_implementation(self, per_replica_value: Any, destinations: Any, axis: int, options: Any) -> Any:
        local = tf.concat(list(per_replica_value.values), axis)
        order = [axis, *(d for d in range(local.shape.rank) if d != axis)]
        back = [order.index(d) for d in range(local.shape.rank)]
        gathered = tf.transpose(allgather(tf.transpose(local, order)), back)
        return self._local.broadcast_implementation(gathered, destinations)


class _Extended(mirrored_strategy.MirroredExtended):
    """The devices of this process as a mirrored strategy has them, and the ranks as those of several workers."""

    def __init__(self, container: Any, devices: Any):
        super().__init__(container, devices, RingAllReduce(Sum))

    @property
    def _num_replicas_in_sync(self) -> int:
        return len(self.worker_devices) * _basics.size()

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return _basics.rank() * len(self.worker_devices) + replica_id

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - _basics.rank() * len(self.worker_devices)

    def _get_variable_creator_initial_value(self, replica_id: int, device: Any, primary_var: Any, **kwargs: Any) -> Any:
        if replica_id != 0:
            return super()._get_variable_creator_initial_value(replica_id, device, primary_var, **kwargs)
        initial = kwargs["initial_value"]

        def of_rank_0() -> tf.Tensor:
            value = initial() if callable(initial) else initial
            value = tf.convert_to_tensor(getattr(value, "wrapped_value", value), dtype=kwargs.get("dtype"))
            return broadcast(value, 0)

        return of_rank_0 if initial is not None else None

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if distribute_utils.is_mirrored(value) and reduce_op == tf.distribute.ReduceOp.MEAN:
            return value
        ring = self._get_cross_device_ops(value)
        return tf.nest.map_structure(lambda one: ring.reduce(reduce_op, one, destinations, options), value)

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: int, options: Any) -> Any:
        return self._get_cross_device_ops(value)._gather(value, destinations, axis, options)

    def _make_input_context(self) -> Any:
        return tf.distribute.InputContext(_basics.size(), _basics.rank(), self._num_replicas_in_sync)

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return input_util.get_distributed_dataset(
            dataset,
            self._input_workers_with_options(options),
            self._container_strategy(),
            num_replicas_in_sync=self._num_replicas_in_sync,
            input_context=self._make_input_context(),
            options=options,
        )

    def _distribute_datasets_from_function(self, dataset_fn: Callable[..., Any], options: Any) -> Any:
        return input_util.get_distributed_datasets_from_function(
            dataset_fn,
            self._input_workers_with_options(options),
            [self._make_input_context()],
            self._container_strategy(),
            options,
        )

    def _experimental_distribute_values_from_function(self, value_fn: Callable[..., Any]) -> Any:
        values = []
        for local in range(len(self.worker_devices)):
            context = tf.distribute.experimental.ValueContext(self._get_replica_id_in_sync_group(local), self._num_replicas_in_sync)
            values.append(value_fn(context))
        return distribute_utils.regroup(values, always_wrap=True)


class Strategy(distribute_lib.Strategy):
    """tf.distribute.MultiWorkerMirroredStrategy over the ring: variables are alike on all ranks, gradients are reduced over them, and a
    dataset of the global batch size is divided among them.

    Args:
        devices: of this process; its GPUs, or its CPU, when None.
    """

    _collective_key_base = 0

    def __init__(self, devices: Any = None):
        _basics.init()
        super().__init__(_Extended(self, devices))
