"""What the checkpoint engine writes, the stock safetensors package reads; and the two agree on what an image is."""

import json
import pathlib
import struct

import numpy
import safetensors
import safetensors.numpy

from checkpoint_images import SHARD, image, padded
UID = "0b7c2f6e-interop"


def share(rank):
    """One rank's part of a model: every dtype of numpy's, scalars and empty tensors."""
    random = numpy.random.default_rng(rank)
    dtypes = ["bool", "int8", "uint8", "int16", "uint16", "float16", "int32", "uint32", "float32", "int64", "uint64", "float64"]
    tensors = {f"layer.{d}": (random.random((3, 5 + rank)) * 100).astype(d) for d in dtypes}
    tensors["step"] = numpy.array(41 + rank, dtype="int64")
    tensors["nothing"] = numpy.zeros((0, 7), dtype="float32")
    tensors["café/kernel:0"] = random.random(1_200_000).astype("float32")
    return tensors


def test_a_committed_step_loads_with_the_stock_package(checkpoint, tmp_path):
    ranks = 3
    images = []
    for rank in range(ranks):
        path = tmp_path / f"slot-{rank}"
        path.write_bytes(padded(share(rank), {"format": "pt", "step": "40"}))
        images.append(path)
    directory = pathlib.Path(checkpoint("save", tmp_path / "volume", UID, 40, *images).strip())

    for rank in range(ranks):
        file = directory / SHARD.format(rank)
        assert file.read_bytes() == images[rank].read_bytes()
        loaded, expected = safetensors.numpy.load_file(file), share(rank)
        assert loaded.keys() == expected.keys()
        for name, tensor in expected.items():
            assert loaded[name].dtype == tensor.dtype and numpy.array_equal(loaded[name], tensor), name
        with safetensors.safe_open(file, "np") as opened:
            assert opened.metadata() == {"format": "pt", "step": "40"}

    manifest = json.loads((directory / "MANIFEST.json").read_text())
    assert manifest["world"] == ranks and [s["file"] for s in manifest["shards"]] == [SHARD.format(r) for r in range(ranks)]
    assert [s["bytes"] for s in manifest["shards"]] == [p.stat().st_size for p in images]
    assert json.loads((directory / "COMMIT").read_text())["nonce"] == manifest["nonce"]
    assert (directory.parent / "LATEST").read_text().strip() == directory.name
    assert not list(directory.rglob("*.tmp"))


GOOD = {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}
HEADERS = {
    "empty": image({}),
    "one tensor": image({"a": GOOD}, b"xy"),
    "padded": image({"a": GOOD}, b"xy", 4096),
    "metadata": image({"__metadata__": {"k": "v", "é": ""}, "a": GOOD}, b"xy"),
    "scalar": image({"a": {"dtype": "F64", "shape": [], "data_offsets": [0, 8]}}, bytes(8)),
    "dimension 0": image({"a": {"dtype": "F32", "shape": [4, 0], "data_offsets": [0, 0]}}),
    "escaped name": image(b'{"\\u00e9\\ud83d\\ude00":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"xy"),
    "float8": image({"a": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}, b"xy"),
    "data missing": image({"a": GOOD}, b"x"),
    "data left over": image({"a": GOOD}, b"xyz"),
    "hole": image({"a": GOOD, "b": {**GOOD, "data_offsets": [3, 5]}}, b"xyxyx"),
    "overlap": image({"a": GOOD, "b": {**GOOD, "data_offsets": [1, 3]}}, b"xyx"),
    "wrong size": image({"a": {**GOOD, "shape": [3]}}, b"xy"),
    "unknown dtype": image({"a": {**GOOD, "dtype": "F31"}}, b"xy"),
    "overflow": image({"a": {**GOOD, "shape": [2**32, 2**32, 2]}}, b"xy"),
    "beyond 64 bits": image(b'{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,2]}}', b"xy"),
    "negative": image(b'{"a":{"dtype":"U8","shape":[-2],"data_offsets":[0,2]}}', b"xy"),
    "float shape": image(b'{"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}}', b"xy"),
    "metadata of numbers": image({"__metadata__": {"k": 1}}),
    "no object": image(b"[]"),
    "trailing comma": image(b'{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},}', b"xy"),
    "behind the object": image(b"{}{}"),
    "double key in a tensor": image(b'{"a":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"xy"),
    "not UTF-8": image(b'{"\xff\xfe":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"xy"),
    "lone surrogate": image(b'{"\\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', b"xy"),
    "length beyond the file": struct.pack("<Q", 500) + b"{}",
    "length beyond everything": struct.pack("<Q", 2**64 - 1) + b"{}",
    "seven bytes": b"1234567",
    "nothing": b"",
}

# The format's text says that a header begins with "{" and what a tensor's keys are; the stock reader lets these pass.
STRICTER = {
    "space first": image(b"  {}"),
    "unknown key": image({"a": {**GOOD, "x": 1}}, b"xy"),
}


def stock_accepts(path):
    try:
        with safetensors.safe_open(path, "np"):
            return True
    except (safetensors.SafetensorError, OSError):
        return False


def test_both_readers_agree_on_what_an_image_is(checkpoint, tmp_path):
    paths = []
    for number, content in enumerate(HEADERS.values()):
        path = tmp_path / f"{number}.safetensors"
        path.write_bytes(content)
        paths.append(path)
    answers = checkpoint("check", *paths).splitlines()
    assert len(answers) == len(HEADERS)
    differ = [
        f"{name}: stock {stock}, ours {answer}"
        for name, path, answer in zip(HEADERS, paths, answers, strict=True)
        if (stock := stock_accepts(path)) != (answer == "ok")
    ]
    assert not differ, "\n".join(differ)
    assert 8 <= answers.count("ok") < len(HEADERS) - 8


def test_what_the_format_forbids_is_refused_although_the_stock_reader_is_lenient(checkpoint, tmp_path):
    for name, content in STRICTER.items():
        path = tmp_path / "lenient.safetensors"
        path.write_bytes(content)
        assert stock_accepts(path), f"{name}: the stock reader has become stricter, move the case up"
        assert checkpoint("check", path).strip() != "ok", name
