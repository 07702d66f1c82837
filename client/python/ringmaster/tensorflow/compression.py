"""What is done to gradients to make them travel lighter."""

from typing import Any, Tuple

import tensorflow as tf


class Compressor:
    """How a tensor is made smaller for the way, and itself again."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> Tuple[tf.Tensor, Any]:
        """The tensor to send, and what decompress needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        """The tensor as it was before compress, but for the precision that was given up."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Nothing is done."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> Tuple[tf.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        return tensor


class FP16Compressor(Compressor):
    """float32 and float64 travel as float16."""

    @staticmethod
    def compress(tensor: tf.Tensor) -> Tuple[tf.Tensor, Any]:
        if tensor.dtype in (tf.float32, tf.float64):
            return tf.cast(tensor, tf.float16), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: tf.Tensor, context: Any) -> tf.Tensor:
        return tensor if context is None else tf.cast(tensor, context)


class Compression:
    """The compressors there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
