"""ringmaster checkpoint: what is listed, what is found to be broken, what is exported, what goes."""

import json
import os
import pathlib
import pty
import re
import select
import subprocess

import numpy
import pytest
import safetensors
import safetensors.numpy

from checkpoint_images import SHARD, shares, state
from conftest import PATIENCE_S

UID = "0b7c2f6e-command"
RANKS = 3
STEPS = (10, 20, 30)
TORCH = pathlib.Path(__file__).resolve().parent.parent.parent / "build/venv-torch/bin/python"

READ_WITH_TORCH = """
import os, sys
import numpy, safetensors.torch, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader

directory, expected = sys.argv[1:]
whole = safetensors.torch.load_file(expected)
into = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
dcp.load(into, storage_reader=HuggingFaceStorageReader(directory), no_dist=True)
for name, tensor in whole.items():
    assert torch.equal(into[name], tensor), name
print("equal", len(whole))
"""


@pytest.fixture
def save(checkpoint, tmp_path):
    """save(step): commits a step of three ranks; its directory."""

    def call(step, volume=tmp_path / "volume", uid=UID, whole=None):
        paths = []
        for rank, content in enumerate(shares(step, RANKS, whole)):
            path = tmp_path / f"image-{rank}"
            path.write_bytes(content)
            paths.append(path)
        return pathlib.Path(checkpoint("save", volume, uid, step, *paths).strip())

    return call


@pytest.fixture
def volume(save, tmp_path):
    """Three committed steps."""
    for step in STEPS:
        save(step)
    return tmp_path / "volume"


def listed(ringmaster, where):
    done = ringmaster("checkpoint", "ls", where, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["checkpoints"]


def directory_of(volume, step):
    return next(path for path in (volume / UID).iterdir() if path.name.startswith(f"s{step:012d}-"))


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


# ---- ls, show ----------------------------------------------------------------------------------------------------------


def test_every_state_of_a_step_is_told_with_its_reason(ringmaster, save, volume):
    for step in (40, 50, 60, 70, 80):
        save(step)
    (directory_of(volume, 40) / "COMMIT").unlink()  # complete
    (directory_of(volume, 50) / "COMMIT").unlink()
    (directory_of(volume, 50) / "vote-00002.json").unlink()  # partial
    (directory_of(volume, 60) / "BAD").write_text("shard-00001 is damaged\nsecond line")
    (directory_of(volume, 70) / SHARD.format(0)).unlink()  # nobody has noticed yet
    (directory_of(volume, 80) / "COMMIT").rename(directory_of(volume, 80) / "RETIRED")
    found = {item["step"]: item for item in listed(ringmaster, volume)}
    assert [item["step"] for item in listed(ringmaster, volume)] == [80, 70, 60, 50, 40, 30, 20, 10], "newest first"
    assert {step: item["state"] for step, item in found.items()} == {
        10: "committed", 20: "committed", 30: "committed", 40: "complete", 50: "partial", 60: "damaged", 70: "damaged", 80: "retired"}
    assert (found[50]["votes"], found[50]["ranks"]) == (2, 3) and (found[40]["votes"], found[40]["ranks"]) == (3, 3)
    assert found[60]["note"] == "shard-00001 is damaged" and "is missing" in found[70]["note"]
    assert found[30]["bytes"] == sum(path.stat().st_size for path in directory_of(volume, 30).glob("shard-*"))
    assert found[30]["newest"] and sum(item["newest"] for item in found.values()) == 1

    lines = ringmaster("checkpoint", "ls", volume).stdout.splitlines()
    assert lines[0].split() == ["STEP", "STATE", "RANKS", "SIZE", "AGE", "SAVED", "IN", "NOTE"]
    assert re.search(r"50  partial +3 .*2 of 3 ranks have written theirs$", lines[4])
    assert re.search(r"30  committed +3 +[\d.]+ MiB +\d+s  attempt 1 round 3 +newest$", lines[6])


def test_steps_outside_the_history_are_never_restored_and_say_so(ringmaster, save, volume):
    newer = volume / UID / "epochs"
    base = json.loads((newer / "e0000000100000003.base").read_text())
    assert base["lineage"][0]["base_step"] == 20
    save(40)
    restored = json.loads((newer / "e0000000100000004.base").read_text())
    # The newest round went back to step 20 of the second: what the third saved is in no history.
    restored["lineage"] = [{"epoch": restored["epoch"], "base_epoch": str(0x100000002), "base_step": 20}, *base["lineage"][1:]]
    (newer / "e0000000100000004.base").write_text(json.dumps(restored))
    found = {item["step"]: item for item in listed(ringmaster, volume)}
    assert not found[30]["inHistory"] and found[20]["inHistory"] and found[20]["base"] and found[40]["newest"]
    assert "not in the job's history: never restored" in ringmaster("checkpoint", "ls", volume).stdout


def test_a_step_is_shown_with_its_tensors_and_who_has_which_part(ringmaster, volume):
    shown = json.loads(ringmaster("checkpoint", "show", volume, "20", "--crc32c", "-o", "json").stdout)
    whole = state(20)
    assert {t["name"]: t["shape"] for t in shown["tensors"]} == {name: list(array.shape) for name, array in whole.items()}
    table = next(t for t in shown["tensors"] if t["name"] == "table")
    assert [(p["image"], p["offset"], p["shape"]) for p in table["parts"]] == [(0, [0, 0], [3, 6]), (1, [3, 0], [4, 6]), (2, [7, 0], [4, 6])]
    assert table["bytes"] == whole["table"].nbytes and len({p["crc32c"] for p in table["parts"]}) == 3
    part = table["parts"][1]
    content = (directory_of(volume, 20) / SHARD.format(1)).read_bytes()[part["begin"] : part["end"]]
    assert content == whole["table"][3:7].tobytes()
    assert [i["metadata"]["rank"] for i in shown["images"]] == ["0", "1", "2"]

    text = ringmaster("checkpoint", "show", volume / UID).stdout
    assert text.startswith("step 30  committed  3 ranks ") and str(directory_of(volume, 30)) in text
    assert re.search(r"^table +F32 +264 +all  \[11, 6\]$", text, re.M)
    assert re.search(r"^ +96 +2  \[4, 6\] at \[7, 0\]$", text, re.M)
    assert ringmaster("checkpoint", "show", volume, directory_of(volume, 10).name).stdout.startswith("step 10 ")
    assert ringmaster("checkpoint", "show", directory_of(volume, 10)).stdout.startswith("step 10 ")


def test_which_checkpoints_are_meant(ringmaster, save, volume, tmp_path):
    assert [i["step"] for i in listed(ringmaster, volume / UID)] == [30, 20, 10]
    save(5, uid="another")
    both = ringmaster("checkpoint", "ls", volume)
    assert both.returncode == 2 and "checkpoints of 2 jobs; choose one with --job: " in both.stderr and "another" in both.stderr
    assert "attempt 1 round 1" in ringmaster("checkpoint", "ls", volume, "--job", "another").stdout
    assert ringmaster("checkpoint", "ls", volume, "--job", "third").returncode == 3
    for arguments, code, words in [
        (["ls"], 2, "give a job's directory or a directory of checkpoints"),
        (["ls", "nowhere"], 3, "there is no directory nowhere, here or in ringmaster-jobs"),
        (["ls", tmp_path], 3, "holds no checkpoints"),
        (["show", volume / UID, "11"], 3, 'there is no step "11"; there are 30, 20, 10'),
        (["show", volume / UID, "1", "2"], 2, "one step at a time"),
        (["lss"], 2, 'did you mean "ls"?'),
        (["digits"], 2, "'save digits' has a job save one now"),
        ([], 2, "what is to be done?"),
        (["export", volume / UID], 2, "--to"),
        (["prune", volume / UID], 2, "--keep"),
        (["verify", volume / UID, "77"], 3, "there is no step"),
    ]:
        done = ringmaster("checkpoint", *arguments)
        assert done.returncode == code and words in done.stderr, (arguments, done.returncode, done.stderr)
    assert "verify" in ringmaster("checkpoint", "--help").stdout
    assert ringmaster("help", "checkpoint", "prune").stdout.startswith("Usage: ringmaster checkpoint prune")


# ---- verify ------------------------------------------------------------------------------------------------------------


def test_verify_reads_everything_and_says_what_is_broken_where(ringmaster, volume):
    good = ringmaster("checkpoint", "verify", volume)
    assert good.returncode == 0, good.stdout + good.stderr
    assert [line.partition(", ")[0] for line in good.stdout.splitlines()] == ["step 30: good", "step 20: good", "step 10: good"]
    assert good.stderr == "", "no bar without a terminal"

    image = directory_of(volume, 20) / SHARD.format(next(r for r in range(RANKS) if (directory_of(volume, 20) / SHARD.format(r)).stat().st_size > 4 << 20))
    flip(image, (4 << 20) + 77)
    flip(image, 5000)
    flip(directory_of(volume, 10) / SHARD.format(0), 30)
    (directory_of(volume, 30) / "MANIFEST.json").unlink()
    bad = ringmaster("checkpoint", "verify", volume)
    assert bad.returncode == 1
    assert re.search(rf"step 20: \S*{image.name} is damaged in the 4 MiB from byte 0 on: crc32c [0-9a-f]{{8}}, written was [0-9a-f]{{8}}, "
                     r"and in 1 more such pieces\n", bad.stdout)
    assert re.search(r"step 10: \S*shard-00000\S* is damaged in its header: crc32c", bad.stdout)
    assert re.search(r"step 30: \S*MANIFEST.json is missing", bad.stdout) and "good" not in bad.stdout
    assert ringmaster("checkpoint", "verify", volume, "20").returncode == 1
    assert not list(volume.rglob("BAD")), "verify only looks"


def test_a_directory_in_an_image_s_place_is_damage(ringmaster, volume):
    image = directory_of(volume, 30) / SHARD.format(1)
    image.unlink()
    image.mkdir()
    done = ringmaster("checkpoint", "verify", volume, "30")
    assert done.returncode == 1 and "is no file" in done.stdout + done.stderr


def test_a_terminal_gets_a_bar(ringmaster_path, env, volume):
    master, slave = pty.openpty()
    with subprocess.Popen([ringmaster_path, "checkpoint", "verify", volume], stdout=subprocess.DEVNULL, stderr=slave, stdin=subprocess.DEVNULL,
                          env={**env, "TERM": "xterm"}) as process:
        os.close(slave)
        shown = b""
        while select.select([master], [], [], PATIENCE_S)[0]:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
        assert process.wait(PATIENCE_S) == 0
    os.close(master)
    assert b"verify" in shown and b" of " in shown and b"MiB/s" in shown


# ---- export ------------------------------------------------------------------------------------------------------------


def assert_equal(loaded, whole):
    assert loaded.keys() == whole.keys()
    for name, array in whole.items():
        assert loaded[name].dtype == array.dtype and numpy.array_equal(loaded[name], array), name


def test_an_export_in_one_file_loads_with_the_stock_package(ringmaster, volume, tmp_path):
    to = tmp_path / "deep" / "er" / "model.safetensors"
    done = ringmaster("checkpoint", "export", volume, "20", "--to", to)
    assert done.returncode == 0, done.stderr
    assert_equal(safetensors.numpy.load_file(to), state(20))
    with safetensors.safe_open(to, "np") as opened:
        assert opened.metadata() == {"format": "pt", "step": "20"}
    assert [path.name for path in to.parent.iterdir()] == [to.name], "nothing else is left"

    again = ringmaster("checkpoint", "export", volume, "10", "--to", to)
    assert again.returncode == 3 and "is there already" in again.stderr
    assert_equal(safetensors.numpy.load_file(to), state(20))
    assert ringmaster("checkpoint", "export", volume, "10", "--to", to, "--overwrite").returncode == 0
    assert_equal(safetensors.numpy.load_file(to), state(10))


def test_an_export_in_the_hubs_layout_is_what_its_index_says(ringmaster, volume, tmp_path):
    to = tmp_path / "hub"
    done = ringmaster("checkpoint", "export", volume, "--to", to, "--max-shard-size", "1Ki")
    assert done.returncode == 0, done.stderr
    index = json.loads((to / "model.safetensors.index.json").read_text())
    whole = state(30)
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in whole.values())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 2 and files == [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
    loaded = {}
    for file in files:
        part = safetensors.numpy.load_file(to / file)
        assert all(index["weight_map"][name] == file for name in part)
        assert sum(a.nbytes for a in part.values()) <= 1024 or len([a for a in part.values() if a.nbytes]) == 1, "a tensor is never cut"
        loaded.update(part)
    assert_equal(loaded, whole)

    one = ringmaster("checkpoint", "export", volume, "--to", tmp_path / "small", "--match", "model/*", "--strip-prefix", "model/")
    assert one.returncode == 0, one.stderr
    assert [p.name for p in (tmp_path / "small").iterdir()] == ["model.safetensors"]
    assert_equal(safetensors.numpy.load_file(tmp_path / "small" / "model.safetensors"),
                 {name.removeprefix("model/"): array for name, array in whole.items() if name.startswith("model/")})
    none = ringmaster("checkpoint", "export", volume, "--to", tmp_path / "none", "--match", "nothing*")
    assert none.returncode == 1 and "none of the" in none.stderr and not (tmp_path / "none").exists()


def test_nothing_is_left_of_an_export_of_a_damaged_step(ringmaster, volume, tmp_path):
    flip(directory_of(volume, 30) / SHARD.format(2), 4200)
    done = ringmaster("checkpoint", "export", volume, "--to", tmp_path / "hub", "--max-shard-size", "100Ki")
    assert done.returncode == 1 and "is damaged" in done.stderr
    assert list((tmp_path / "hub").iterdir()) == []


def test_parts_that_overlap_or_leave_a_gap_are_not_exported(ringmaster, checkpoint, tmp_path):
    for name, boxes in {"overlap": ([0, 0], [2, 0]), "gap": ([0, 0], [4, 0])}.items():
        paths = []
        for rank, offset in enumerate(boxes):
            tensors = {"table": numpy.ones((3, 2), "float32")}
            raw = safetensors.numpy.save(tensors, {"format": "pt", "layout": "boxes", "boxes": json.dumps({"table": [offset, [6, 2]]})})
            paths.append(tmp_path / f"{name}-{rank}")
            paths[-1].write_bytes(raw)
        checkpoint("save", tmp_path / name, UID, 1, *paths)
        done = ringmaster("checkpoint", "export", tmp_path / name, "--to", tmp_path / "x.safetensors")
        assert done.returncode in (1,) and "tensor table" in done.stderr, done.stderr
        assert ringmaster("checkpoint", "verify", tmp_path / name).returncode == 1
        assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.timeout_s(400)  # importing torch takes its time where others work, too
def test_torch_reads_what_was_exported(ringmaster, volume, tmp_path, env):
    if not TORCH.exists():
        pytest.fail(f"{TORCH} is missing: run make deps-torch")
    to = tmp_path / "hub"
    assert ringmaster("checkpoint", "export", volume, "--to", to, "--max-shard-size", "1Mi").returncode == 0
    assert len(list(to.glob("*.safetensors"))) > 1
    expected = tmp_path / "expected.safetensors"
    safetensors.numpy.save_file(state(30), expected)
    program = tmp_path / "read.py"
    program.write_text(READ_WITH_TORCH)
    done = subprocess.run([TORCH, program, to, expected], capture_output=True, text=True, timeout=300, env={**env, "PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == f"equal {len(state(30))}"


# ---- prune -------------------------------------------------------------------------------------------------------------


def test_prune_keeps_what_a_restart_needs(ringmaster, save, volume):
    for step in range(40, 101, 10):
        save(step)
    before = sorted(p.name for p in (volume / UID).iterdir())
    dry = ringmaster("checkpoint", "prune", volume, "--keep", "2", "--keep-every", "50", "--dry-run")
    assert dry.returncode == 0 and sorted(p.name for p in (volume / UID).iterdir()) == before
    done = ringmaster("checkpoint", "prune", volume, "--keep", "2", "--keep-every", "50")
    assert done.returncode == 0, done.stderr
    assert [line.replace("would go", "removed") for line in dry.stdout.splitlines()] == done.stdout.splitlines()
    # The newest two, 50 and 100 by --keep-every, 90 and 80 as what the newest two rounds began from.
    assert [item["step"] for item in listed(ringmaster, volume)] == [100, 90, 80, 50]
    assert ringmaster("checkpoint", "verify", volume).returncode == 0
    assert not list(volume.rglob("*.tmp"))
    assert "0 removed" in ringmaster("checkpoint", "prune", volume, "--keep", "2", "--keep-every", "50").stdout


def test_prune_never_takes_the_newest_step_that_is_whole(ringmaster, volume):
    (directory_of(volume, 30) / SHARD.format(1)).unlink()  # committed, and damaged
    (directory_of(volume, 20) / "BAD").write_text("found by a reader\n")
    assert ringmaster("checkpoint", "prune", volume, "--keep", "1").returncode == 0
    found = listed(ringmaster, volume)
    assert [i["step"] for i in found if i["state"] == "committed"] == [10] and found[-1]["newest"]


def test_a_job_of_this_machine_is_found_by_its_name(ringmaster, write_job, tmp_path, python_path):
    code = "import numpy, ringmaster as rm\nfrom ringmaster import checkpoint\nrm.init()\ncheckpoint.restore()\n" \
           "for step in (1, 2):\n    checkpoint.save(step, {'w': numpy.ones(9, 'float32') * step}, {})\n    checkpoint.wait(90)\n"
    job = write_job({"Worker": (2, [str(python_path), "-c", code])}, name="mnist")
    done = ringmaster("run", "-f", job)
    assert done.returncode == 0, done.stdout + done.stderr
    for where in ("mnist", "ringmaster-jobs/mnist", "ringmaster-jobs/mnist/checkpoints"):
        assert [(i["step"], i["state"], i["ranks"]) for i in listed(ringmaster, where)] == [(2, "committed", 2), (1, "committed", 2)], where
    by_default = ringmaster("checkpoint", "verify", env_more={"RINGMASTER_JOB_DIR": str(tmp_path / "ringmaster-jobs/mnist")})
    assert by_default.returncode == 0 and by_default.stdout.count("good") == 2
