"""Names that tests of Horovod programs import from horovod.tensorflow.util."""

import tensorflow as tf


def _executing_eagerly() -> bool:
    """Whether TensorFlow executes eagerly here."""
    return bool(tf.executing_eagerly())
