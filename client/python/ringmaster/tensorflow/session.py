"""TF1: graphs and sessions."""

from typing import Any

import tensorflow as tf

from .collectives import broadcast_variables


def broadcast_global_variables(root_rank: int) -> Any:
    """Sets all global variables of the default graph to the root's values.

    Args:
        root_rank: whose values count.

    Returns:
        The operation to run.

    Raises:
        RuntimeError: in eager mode, where there is no list of all variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError("broadcast_global_variables() does not support eager execution. Please use broadcast_variables(model/optimizer variables) instead.")
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """For tf.compat.v1.train.MonitoredTrainingSession and estimators: sets all global variables to one rank's when the session has been made,
    by initializing or from a checkpoint.

    Args:
        root_rank: whose values count.
        device: taken for Horovod's sake.
    """

    def __init__(self, root_rank: int, device: str = ""):
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.bcast_op: Any = None

    def begin(self) -> None:
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        session.run(self.bcast_op)
