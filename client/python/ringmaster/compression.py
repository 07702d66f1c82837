"""How tensors are made smaller before they travel: the interface, and what there is for numpy arrays."""

from typing import Any, Tuple

import numpy as np


class Compressor:
    """Interface: what `compress` gives goes over the wire, and is given to `decompress` with its context."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """The tensor to send, and what `decompress` needs to know."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """A tensor like the one that was given to `compress`."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor


class FP16Compressor(Compressor):
    """Floating arrays travel as float16."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        array = np.asarray(tensor)
        return (array.astype(np.float16), array.dtype) if array.dtype.kind == "f" else (array, None)

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        return tensor if ctx is None else tensor.astype(ctx)


class Compression:
    """The choices: `Compression.none`, `Compression.fp16`."""

    none = NoneCompressor
    fp16 = FP16Compressor
