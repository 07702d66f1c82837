"""Checkpoints: state that every rank holds alike is shared out among the ranks, staged in shared memory, and committed by the
sidecars while training goes on.

    saved = checkpoint.save(step, {"dense/kernel": array, ...}, {"epoch": 3})   # a memory copy, no disk, no waiting
    state = checkpoint.restore()                                              # (step, tensors, extra), or None

Each rank's part is a complete safetensors file (see docs/checkpoints.md), readable by the stock package. In a world without a
sidecar nothing is saved and nothing restored.
"""

import ctypes
import hashlib
import json
import logging
import operator
import os
import struct
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from . import _basics, _core, _ops
from . import boxes as _boxes
from ._core import RingmasterError
from .boxes import Box

log = logging.getLogger("ringmaster")

# Of all ranks that saved, in their order: this rank's.
Resplit = Callable[[List[Dict[str, Any]]], Mapping[str, Any]]

REPLICATED = "replicated"  # whole tensors, alike on all ranks and dealt out among them; images without the word are that, too
BOXES = "boxes"  # some tensors are spread over the ranks: `boxes` of the metadata says which part of them this image has
ALIGN = 4096  # where tensor data begins in the image
HEADER_MAX = 16 << 20
CAPACITY_STEP = 64 << 10  # slots are asked for in such steps, so that a longer header does not need new ones

DTYPE_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
}
NUMPY_NAMES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
DTYPE_NAMES["void16"] = "BF16"  # without the ml_dtypes package


class Restored(NamedTuple):
    """What `restore` found."""

    step: int
    tensors: Dict[str, np.ndarray]
    extra: Dict[str, Any]


class Shard(NamedTuple):
    """This rank's part of a tensor that is spread over the ranks."""

    array: np.ndarray
    offset: Sequence[int]  # where it begins in the whole
    shape: Sequence[int]  # of the whole


class Description(NamedTuple):
    """One tensor, as all ranks know it."""

    name: str
    dtype: str  # of the safetensors format: "F32"
    shape: Tuple[int, ...]

    @property
    def nbytes(self) -> int:
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count * numpy_dtype(self.dtype).itemsize


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype of a safetensors dtype.

    Raises:
        RingmasterError: a dtype that is not ours.
    """
    if name not in NUMPY_NAMES:
        raise RingmasterError(f"checkpoint: dtype {name!r} is not supported; supported are {', '.join(NUMPY_NAMES)}")
    if name == "BF16":
        try:
            import ml_dtypes
        except ImportError:
            return np.dtype("V2")  # two bytes: what there is in numpy alone
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(NUMPY_NAMES[name])


def describe(tensors: Mapping[str, np.ndarray]) -> List[Description]:
    """The tensors in the order that all ranks agree on: by name.

    Raises:
        ValueError: a dtype that cannot be saved, or a name that the format keeps for itself.
    """
    descriptions = []
    for name in sorted(tensors):
        array = tensors[name]
        if name == "__metadata__":
            raise ValueError("checkpoint: a tensor cannot be called __metadata__")
        if array.dtype.name not in DTYPE_NAMES:
            raise ValueError(f"checkpoint: tensor {name!r} has dtype {array.dtype}; supported are {', '.join(NUMPY_NAMES.values())}")
        descriptions.append(Description(name, DTYPE_NAMES[array.dtype.name], tuple(array.shape)))
    return descriptions


def partition(descriptions: List[Description], world: int) -> List[List[Description]]:
    """Who saves what: the largest first, each to the rank that has the least so far. Pure, so all ranks agree without a word.

    Returns:
        One list a rank, sorted as they lie in its image: wide dtypes first, so that every tensor is aligned to its own size.
    """
    shares: List[List[Description]] = [[] for _ in range(world)]
    loads = [0] * world
    for description in sorted(descriptions, key=lambda d: (-d.nbytes, d.name)):
        least = loads.index(min(loads))
        shares[least].append(description)
        loads[least] += description.nbytes
    for share in shares:
        share.sort(key=lambda d: (-numpy_dtype(d.dtype).itemsize, d.name))
    return shares


def digest(descriptions: List[Description]) -> str:
    """Tells two sets of tensors apart, whatever order they come in."""
    listed = sorted([d.name, d.dtype, list(d.shape)] for d in descriptions)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def encode_header(share: List[Description], metadata: Mapping[str, str]) -> bytes:
    """The header of an image: length, JSON, and spaces up to a multiple of ALIGN."""
    header: Dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for description in share:
        end = offset + description.nbytes
        header[description.name] = {
            "dtype": description.dtype,
            "shape": list(description.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGN)
    return struct.pack("<Q", len(text)) + text


def decode_header(image: np.ndarray, number: int) -> Tuple[List[Tuple[Description, int]], Dict[str, str], int]:
    """Reads and checks the header of image `number` (uint8).

    Returns:
        The tensors with where each begins in the data, in that order; the metadata; where the data begins.

    Raises:
        RingmasterError: this is no safetensors file, or not a whole one.
    """

    def bad(why: str) -> RingmasterError:
        return RingmasterError(f"checkpoint: the image of rank {number} is damaged: {why}")

    if image.size < 8:
        raise bad(f"{image.size} bytes")
    (length,) = struct.unpack("<Q", image[:8].tobytes())
    if length > min(HEADER_MAX, image.size - 8):
        raise bad(f"a header of {length} bytes in {image.size}")
    try:
        header = json.loads(image[8 : 8 + length].tobytes())
    except ValueError as error:
        raise bad(f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise bad("its header is no JSON object")
    metadata = header.pop("__metadata__", {})
    listed: List[Tuple[Description, int]] = []
    try:
        for name, entry in header.items():
            description = Description(name, entry["dtype"], tuple(int(n) for n in entry["shape"]))
            begin, end = entry["data_offsets"]
            if min(description.shape, default=0) < 0 or end - begin != description.nbytes:
                raise bad(f"tensor {name!r} has {end - begin} bytes, its shape needs {description.nbytes}")
            listed.append((description, begin))
    except (KeyError, TypeError, ValueError) as error:
        raise bad(f"an entry of its header: {error!r}") from None
    listed.sort(key=lambda item: (item[1], item[0].nbytes))
    offset = 0
    for description, begin in listed:
        if begin != offset:
            raise bad(f"tensor {description.name!r} begins at {begin}, the one before it ends at {offset}")
        offset += description.nbytes
    if 8 + length + offset != image.size:
        raise bad(f"it has {image.size} bytes, its header needs {8 + length + offset}")
    return listed, metadata, 8 + length


def _bytes_at(address: Optional[int], length: int) -> np.ndarray:
    """A writable view of memory that the library owns."""
    return np.frombuffer((ctypes.c_uint8 * length).from_address(address or 0), np.uint8)


# ---- the calls ---------------------------------------------------------------------------------------------------------


def save(
    step: int,
    tensors: Mapping[str, np.ndarray],
    extra: Optional[Mapping[str, Any]] = None,
    shards: Optional[Mapping[str, Shard]] = None,
) -> bool:
    """Stages the state of this step. Every rank calls it with the same step and the same tensors.

    Each rank copies the tensors that fall to it into a slot of shared memory; that is all that training waits for. The sidecars
    write the parts to the volume and commit the step when all of them are there.

    Args:
        step: the number of training steps done; what `restore` will give back.
        tensors: the whole state by name, alike on all ranks: arrays of bool, (u)int8..64, float16, bfloat16, float32, float64.
        extra: this rank's own values, anything that JSON can hold; may differ among ranks.
        shards: this rank's parts of tensors that are spread over the ranks. All ranks name the same ones; every element is in the
            part of exactly one of them.

    Returns:
        True: staged. False: skipped, because both slots still wait to be committed, or because there is no sidecar.

    Raises:
        ValueError: a dtype that cannot be saved, or an extra that JSON cannot hold.
        PeerLostError: the sidecar is gone.
        RingmasterError: the sidecar refuses, e.g. because memory for the slots is short; it says why.
    """
    if not _basics.is_initialized():
        raise ValueError("Ringmaster has not been initialized; use ringmaster.init().")
    if not available():
        return False
    arrays = {name: np.asarray(array) for name, array in tensors.items()}
    descriptions = describe(arrays)
    world, rank = _basics.size(), _basics.rank()
    share = partition(descriptions, world)[rank]
    parts = _check_shards(shards or {}, arrays)
    spread = describe(parts)
    arrays.update(parts)
    share = sorted(share + spread, key=lambda d: (-numpy_dtype(d.dtype).itemsize, d.name))
    descriptions += [d._replace(shape=tuple(shards[d.name].shape)) for d in spread] if shards else []
    header = encode_header(
        share,
        {
            "format": "pt",  # row-major and little-endian; readers of the format insist on one of its words
            "step": str(int(step)),
            "rank": str(rank),
            "world": str(world),
            "tensors": digest(descriptions),
            "layout": BOXES if shards else REPLICATED,
            "extra": json.dumps(dict(extra or {})),
            **({"boxes": json.dumps({name: [list(s.offset), list(s.shape)] for name, s in shards.items()})} if shards else {}),
        },
    )
    total = len(header) + sum(description.nbytes for description in share)
    capacity = -(-total // CAPACITY_STEP) * CAPACITY_STEP
    lib = _core.library()
    address = ctypes.c_void_p()
    code = lib.rm_checkpoint_begin(int(step), capacity, ctypes.byref(address))
    if code == _core.TIMEOUT:
        return False
    _core.check(code)
    image = _bytes_at(address.value, total)
    image[: len(header)] = np.frombuffer(header, np.uint8)
    at = len(header)
    for description in share:
        target = image[at : at + description.nbytes].view(arrays[description.name].dtype)
        np.copyto(target.reshape(description.shape), arrays[description.name])
        at += description.nbytes
    _core.check(lib.rm_checkpoint_stage(int(step), total))
    return True


def _check_shards(shards: Mapping[str, Shard], arrays: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
    parts = {name: np.asarray(shard.array) for name, shard in shards.items()}
    for name, shard in shards.items():
        if name in arrays:
            raise ValueError(f"checkpoint: {name!r} is both a tensor of all ranks and one that is spread over them")
        if not _boxes.fits(Box(tuple(shard.offset), parts[name].shape), shard.shape):
            raise ValueError(
                f"checkpoint: the part of {name!r} at {list(shard.offset)} of shape {list(parts[name].shape)} does not lie within "
                f"{list(shard.shape)}"
            )
    return parts


def available() -> bool:
    """Whether there is a sidecar to save with."""
    return bool(os.environ.get("RINGMASTER_SOCKET")) and _basics.is_initialized()


def wanted() -> bool:
    """Whether the job has asked for a checkpoint since the last call: by a command, or because a pod is to end. Ranks hear of it
    at different steps; they must agree on one before they save."""
    return _core.library().rm_checkpoint_wanted() == 1


def wait(timeout: Optional[float] = None) -> Optional[int]:
    """Waits until nothing that was staged is left to be committed.

    Args:
        timeout: seconds; None waits for as long as it takes.

    Returns:
        The newest committed step, None when there is none.

    Raises:
        RingmasterError: with code `TIMEOUT` when the time is over.
        PeerLostError: the sidecar is gone.
    """
    step = ctypes.c_int64(-1)
    milliseconds = -1 if timeout is None else int(timeout * 1000)
    _core.check(_core.library().rm_checkpoint_wait(milliseconds, ctypes.byref(step)))
    return step.value if step.value >= 0 else None


def resume_step() -> Optional[int]:
    """The step that the ranks have agreed to resume from, None: start from scratch. Alike on all ranks."""
    step = _core.library().rm_resume_step()
    return step if step >= 0 else None


def restore(resplit: Optional[Resplit] = None, boxes: Optional[Mapping[str, Box]] = None) -> Optional[Restored]:
    """The state that the ranks have agreed to resume from. Every rank calls it, or none.

    Each rank reads the parts that fall to it: its own, from memory when its sidecar still has it; after a change of the number of
    ranks, the parts of rank r, r + size, r + 2 * size, ... of those who saved. The ranks then give each other theirs. What comes back
    is complete, or an error on every rank.

    Args:
        resplit: for a checkpoint of another number of ranks: called with the `extra` of all ranks that saved, in their order, gives
            this rank's. Without it that is `keep_common`.
        boxes: which part of a tensor this rank wants, by name; of the others it gets the whole, however they were saved.

    Returns:
        (step, tensors, extra): the whole state and this rank's own extra; None: start from scratch.

    Raises:
        RingmasterError: a part is damaged or missing.
        PeerLostError: a rank is gone.
    """
    step = resume_step()
    if step is None:
        return None
    wanted = {name: _box(*box) for name, box in (boxes or {}).items()}
    own: Dict[int, np.ndarray] = {}
    mine: Dict[str, Any]
    try:
        world, parts = _own_images(step)
        own = {image: part.data for image, part in parts.items()}
        mine = {"world": world, "parts": {image: part.told for image, part in parts.items()}, "wanted": wanted}
    except _core.PeerLostError:
        raise
    except (RingmasterError, ValueError) as error:
        mine = {"error": str(error)}
    everyone = _exchange_texts(json.dumps(mine), f"checkpoint.restore.{step}")
    told = _all_parts(step, everyone)
    images = [[_entry(item, part["boxes"]) for item in part["tensors"]] for part in told]
    wholes = _check_complete(step, images, [part["digest"] for part in told])
    _check_wanted(step, wholes, [theirs["wanted"] for theirs in everyone])
    tensors: Dict[str, np.ndarray] = {}
    for image, entries in enumerate(images):
        for entry, array in zip(entries, _share_out(step, image, entries, own.pop(image, None))):
            _place(tensors, entry, array, wanted.get(entry.part.name, _boxes.whole(entry.whole)))
    extras = [part["extra"] for part in told]
    extra = extras[_basics.rank()] if len(extras) == _basics.size() else dict((resplit or keep_common)(extras))
    return Restored(step, tensors, extra)


def keep_common(extras: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """What all ranks' extras had alike. What differed, such as the position in a rank's data or the state of its random numbers, has
    no meaning for another number of ranks: it is dropped, with a warning from rank 0."""
    alike, differing = common_extra(extras)
    if differing and _basics.rank() == 0:
        log.warning(
            "the checkpoint was saved by %d ranks and is restored by %d: values of `extra` that differed among them are dropped: %s "
            "(checkpoint.restore(resplit=...) can keep them)",
            len(extras),
            _basics.size(),
            ", ".join(differing),
        )
    return alike


def common_extra(extras: Sequence[Mapping[str, Any]]) -> Tuple[Dict[str, Any], List[str]]:
    """What several ranks' extras have alike, objects within objects looked into, and the names of what they have not."""
    alike: Dict[str, Any] = {}
    differing: List[str] = []
    for key in sorted({key for extra in extras for key in extra}):
        values = [extra.get(key) for extra in extras]
        if all(isinstance(value, dict) for value in values):
            alike[key], inner = common_extra([value for value in values if isinstance(value, dict)])
            differing += [f"{key}.{name}" for name in inner]
        elif all(key in extra and value == values[0] for extra, value in zip(extras, values)):
            alike[key] = values[0]
        else:
            differing.append(key)
    return alike, differing


class _Entry(NamedTuple):
    """A tensor of an image, or a part of one."""

    part: Description
    box: Box
    whole: Tuple[int, ...]  # shape of the tensor


def _box(offset: Sequence[int], shape: Sequence[int]) -> Box:
    return Box(tuple(map(operator.index, offset)), tuple(map(operator.index, shape)))


def _entry(item: List[Any], spread: Mapping[str, Any]) -> _Entry:
    name, dtype, shape = item
    offset, whole = spread.get(name, ([0] * len(shape), shape))
    box = _box(offset, shape)
    return _Entry(Description(name, dtype, box.shape), box, tuple(map(operator.index, whole)))


def _place(tensors: Dict[str, np.ndarray], entry: _Entry, array: np.ndarray, wanted: Box) -> None:
    """Puts what is wanted of one part where it belongs."""
    name = entry.part.name
    if entry.box == wanted:
        tensors[name] = array
        return
    if name not in tensors:
        tensors[name] = np.empty(wanted.shape, array.dtype)
    common = _boxes.intersect(entry.box, wanted)
    if common is not None:
        tensors[name][_boxes.slices(common, wanted)] = array[_boxes.slices(common, entry.box)]


class _Part(NamedTuple):
    """The image of one of the ranks that saved."""

    told: Dict[str, Any]  # to the other ranks: tensors, digest, extra
    data: np.ndarray  # a copy


def _own_images(step: int) -> Tuple[int, Dict[int, _Part]]:
    """The number of ranks that saved this step, and this rank's share of their images by number."""
    lib = _core.library()
    address, length, found, world = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int64(), ctypes.c_int()
    parts: Dict[int, _Part] = {}
    image = _basics.rank()
    try:
        while True:
            _core.check(
                lib.rm_checkpoint_restore_image(
                    image, ctypes.byref(address), ctypes.byref(length), ctypes.byref(found), ctypes.byref(world)
                )
            )
            if found.value != step:
                raise RingmasterError(f"checkpoint: the sidecar has step {found.value}, agreed was step {step}")
            if image < world.value:
                parts[image] = _read_part(_bytes_at(address.value, length.value), image)
            image += _basics.size()
            if image >= world.value:
                return world.value, parts
    finally:
        lib.rm_checkpoint_restore_done()


def _read_part(image: np.ndarray, number: int) -> _Part:
    listed, metadata, begin = decode_header(image, number)
    layout = metadata.get("layout", REPLICATED)
    if layout not in (REPLICATED, BOXES):
        raise RingmasterError(f"checkpoint: the image of rank {number} has tensors of layout {layout!r}, which this release cannot restore")
    extra = json.loads(metadata.get("extra", "{}"))
    if not isinstance(extra, dict):
        raise RingmasterError(f"checkpoint: `extra` in the image of rank {number} is no JSON object")
    spread = json.loads(metadata.get("boxes", "{}"))
    tensors = [[d.name, d.dtype, d.shape] for d, _ in listed]
    try:
        if not all(_boxes.fits(entry.box, entry.whole) for entry in (_entry(item, spread) for item in tensors)):
            raise ValueError("a part lies outside its tensor")
    except (AttributeError, TypeError, ValueError) as error:
        raise RingmasterError(f"checkpoint: `boxes` in the image of rank {number} cannot be read: {error}") from None
    told = {"tensors": tensors, "boxes": spread, "digest": metadata.get("tensors", ""), "extra": extra}
    return _Part(told, image[begin:].copy())


def _all_parts(step: int, everyone: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """What the ranks tell of the parts, in the order of those who saved them."""
    for rank, theirs in enumerate(everyone):
        if "error" in theirs:
            raise RingmasterError(f"checkpoint of step {step}, rank {rank}: {theirs['error']}")
    world = everyone[0]["world"]
    for rank, theirs in enumerate(everyone):
        if theirs["world"] != world:
            raise RingmasterError(
                f"checkpoint of step {step}: rank 0 has one of {world} ranks, rank {rank} one of {theirs['world']}"
            )
    size = len(everyone)
    return [everyone[image % size]["parts"][str(image)] for image in range(world)]


def _share_out(step: int, image: int, entries: List[_Entry], own: Optional[np.ndarray]) -> List[np.ndarray]:
    """The tensors of one image, from the rank that has read it to all."""
    length = sum(entry.part.nbytes for entry in entries)
    data = own if own is not None else np.empty(length, np.uint8)
    if _basics.size() > 1 and length > 0:
        data = _ops.broadcast(data, image % _basics.size(), f"checkpoint.restore.{step}.{image}")
    arrays = []
    at = 0
    for entry in entries:
        view = data[at : at + entry.part.nbytes].view(numpy_dtype(entry.part.dtype))
        arrays.append(view.reshape(entry.part.shape))
        at += entry.part.nbytes
    return arrays


def _exchange_texts(text: str, name: str) -> List[Dict[str, Any]]:
    """The JSON texts of all ranks, decoded, in rank order."""
    data = np.frombuffer(text.encode(), np.uint8)
    lengths = _ops.allgather(np.array([data.size], np.int64), f"{name}.length")
    everything = _ops.allgather(data, f"{name}.text")
    ends = np.cumsum(lengths)
    return [json.loads(everything[end - length : end].tobytes()) for end, length in zip(ends, lengths)]


def _check_complete(step: int, images: List[List[_Entry]], digests: List[str]) -> Dict[str, Description]:
    """The tensors that the images make up, by name; every element of each is in exactly one of them."""
    parts: Dict[str, List[_Entry]] = {}
    for entry in (entry for entries in images for entry in entries):
        parts.setdefault(entry.part.name, []).append(entry)
    wholes: Dict[str, Description] = {}
    for name, entries in sorted(parts.items()):
        first = entries[0]
        if len(entries) > 1 and first.part.nbytes > 0 and all(entry.box == _boxes.whole(entry.whole) for entry in entries):
            raise RingmasterError(f"checkpoint of step {step}: two ranks hold tensor {name!r}: the parts are not of one save")
        if any((entry.whole, entry.part.dtype) != (first.whole, first.part.dtype) for entry in entries):
            raise RingmasterError(f"checkpoint of step {step}: ranks hold parts of {name!r} of different tensors")
        wrong = _boxes.uncovered(first.whole, [entry.box for entry in entries])
        if wrong is not None:
            raise RingmasterError(f"checkpoint of step {step}: tensor {name!r} is not whole: {wrong}")
        wholes[name] = Description(name, first.part.dtype, first.whole)
    expected = digest(list(wholes.values()))
    for rank, found in enumerate(digests):
        if found != expected:
            raise RingmasterError(
                f"checkpoint of step {step} is not complete: the part of rank {rank} belongs to a set of other tensors"
            )
    return wholes


def _check_wanted(step: int, wholes: Mapping[str, Description], everyone: List[Mapping[str, Any]]) -> None:
    """On every rank alike, before any of them waits for another."""
    for rank, wanted in enumerate(everyone):
        for name, (offset, shape) in sorted(wanted.items()):
            if name not in wholes:
                raise RingmasterError(f"checkpoint of step {step}: rank {rank} wants a part of {name!r}, which it does not have")
            if not _boxes.fits(_box(offset, shape), wholes[name].shape):
                raise RingmasterError(
                    f"checkpoint of step {step}: rank {rank} wants the part of {name!r} at {offset} of shape {shape}, which does not lie "
                    f"within {list(wholes[name].shape)}"
                )
