"""Images by hand: what a client stages, one safetensors file a rank, and the state that they make up together."""

import json
import struct

import numpy
import safetensors.numpy

SHARD = "shard-{:05d}-model-00001-of-00001.safetensors"


def image(header, data=b"", align=0):
    """A file of this header: as the client writes it, padded with spaces so that the data is aligned."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if align:
        text += b" " * (-(len(text) + 8) % align)
    return struct.pack("<Q", len(text)) + text + data


def padded(tensors, metadata):
    """The stock writer's file with the header padded to 4096 bytes."""
    raw = safetensors.numpy.save(tensors, metadata)
    n = struct.unpack("<Q", raw[:8])[0]
    return image(raw[8 : 8 + n], raw[8 + n :], 4096)


def state(step, rows=11):
    """The whole state of a step: a model in several dtypes, and a table and a cube that are spread over the ranks."""
    random = numpy.random.default_rng(step)
    whole = {f"model/layer{i}.{d}": (random.random((3, 5 + i)) * 100).astype(d) for i in range(3) for d in ("float16", "float32", "int64")}
    whole["model/embedding"] = random.random(1_100_000).astype("float32")
    whole["model/empty"] = numpy.zeros((0, 7), dtype="float32")
    whole["optimizer/step"] = numpy.array(step, dtype="int64")
    whole["table"] = random.random((rows, 6)).astype("float32")
    whole["cube"] = random.random((3, rows, 4)).astype("float64")
    return whole


def shares(step, ranks, whole=None):
    """One image a rank: whole tensors dealt out, `table` cut by rows, `cube` along its middle axis."""
    whole = state(step) if whole is None else whole
    rows = whole["table"].shape[0]
    cuts = [rows * r // ranks for r in range(ranks + 1)]
    replicated = sorted(set(whole) - {"table", "cube"})
    images = []
    for rank in range(ranks):
        low, high = cuts[rank], cuts[rank + 1]
        tensors = {name: whole[name] for name in replicated[rank::ranks]}
        tensors["table"] = numpy.ascontiguousarray(whole["table"][low:high])
        tensors["cube"] = numpy.ascontiguousarray(whole["cube"][:, low:high])
        boxes = {"table": [[low, 0], list(whole["table"].shape)], "cube": [[0, low, 0], list(whole["cube"].shape)]}
        metadata = {"format": "pt", "step": str(step), "rank": str(rank), "world": str(ranks), "layout": "boxes", "tensors": "of one job",
                    "extra": json.dumps({"seen": rank}), "boxes": json.dumps(boxes)}
        images.append(padded(tensors, metadata))
    return images
