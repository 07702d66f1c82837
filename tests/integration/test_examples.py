"""The examples, and the client on the real ring: jobs of `ringmaster run`."""

import json
import re

import pytest

from conftest import ROOT

EVERYTHING = """
import os, sys
import numpy as np
import ringmaster as rm
from ringmaster import checkpoint
rm.init()
rank, size = rm.rank(), rm.size()
for dtype in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64"):
    for op, expected in ((rm.Sum, 6), (rm.Min, 1), (rm.Max, 3), (rm.Product, 6)):
        got = rm.allreduce(np.full(1000, rank + 1, dtype), op=op, name=f"{dtype}.{op.name}")
        assert got.dtype == dtype and (got == expected).all(), (dtype, op, got)
large = np.random.default_rng(rank).integers(-1000, 1000, 5_000_000).astype(np.float32)  # pieces
total = sum(np.random.default_rng(r).integers(-1000, 1000, 5_000_000).astype(np.float32) for r in range(size))
assert (rm.allreduce(large, op=rm.Sum, name="large") == total).all()
assert (rm.broadcast(large, 2, name="sent") == np.random.default_rng(2).integers(-1000, 1000, 5_000_000).astype(np.float32)).all()
assert rm.allgather(np.full((rank, 2), rank)).tolist() == [[1, 1], [2, 2], [2, 2]]
assert rm.allgather_object({"rank": rank}) == [{"rank": r} for r in range(size)]
assert rm.broadcast_object(str(rank), root_rank=1) == "1"
for bad in (np.zeros(3 + rank), np.zeros(3_000_000 + (rank == 1) * 2_000_000)):
    try:
        rm.allreduce(bad, name="bad")
        raise SystemExit("no error")
    except rm.MismatchError as error:
        assert "worker-" in str(error), error
rm.barrier()
found = checkpoint.restore()
state = {"w": np.arange(100_000, dtype=np.float64), "step": np.int64(0)}
if found is None:
    assert checkpoint.save(5, state, {"rank": rank})
    assert checkpoint.wait(30) == 5
    if rank == 1:
        os.kill(os.getpid(), 9)
    rm.allreduce(np.zeros(1), name="never")  # ends with a lost peer
    raise SystemExit("rank 1 came back")
assert found.step == 5 and (found.tensors["w"] == state["w"]).all() and found.extra == {"rank": rank}
print(f"rank {rank} of {size}: all is well", flush=True)
"""


def output_of(result):
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_everything_of_the_client_on_a_real_ring(ringmaster, write_job, job_dir, python_path):
    manifest = write_job({"Worker": (3, [python_path, "-c", EVERYTHING])}, restartPolicy="OnFailure")
    shown = output_of(ringmaster("run", "-f", manifest, "--job-dir", job_dir))
    assert all(f"rank {rank} of 3: all is well" in shown for rank in range(3))
    report = json.loads((job_dir / "report.json").read_text())
    assert report["succeeded"] and report["restarts"] == 1


def test_digits_on_three_ranks_have_one_set_of_weights(ringmaster, job_dir):
    train = ROOT / "examples/digits/train.py"
    shown = output_of(
        ringmaster("run", "-np", 3, "--job-dir", job_dir, "--", "python", train, "--epochs", 3, "--width", 16, timeout_s=280)
    )
    hashes = re.findall(r"rank \d of 3: weights ([0-9a-f]{64})", shown)
    assert len(hashes) == 3 and len(set(hashes)) == 1
    assert float(re.search(r"test accuracy (\S+)", shown).group(1)) > 0.8


def test_multi_worker_mirrored_strategy_by_tf_config_alone(ringmaster, job_dir, tmp_path):
    shown = output_of(
        ringmaster(
            "run", "-f", ROOT / "examples/mwms/trainingjob.yaml", "--job-dir", job_dir, cwd=ROOT, timeout_s=280,
            env_more={"BACKUP_DIR": str(tmp_path / "backup")},
        )  # fmt: skip
    )
    assert "worker 0: 2 replicas, 5 epochs" in shown and "worker 1: 2 replicas, 5 epochs" in shown
    assert "import ringmaster" not in (ROOT / "examples/mwms/train.py").read_text()


def test_a_parameter_server_by_flags(ringmaster, job_dir):
    shown = output_of(ringmaster("run", "-f", ROOT / "examples/ps/trainingjob.yaml", "--job-dir", job_dir, cwd=ROOT, timeout_s=280))
    steps = [int(n) for n in re.findall(r"worker \d: (\d+) steps of mine", shown)]
    assert "ps 0: serving" in shown and len(steps) == 2 and min(steps) > 0 and sum(steps) >= 300, shown


@pytest.mark.parametrize("name", ["digits", "mwms", "ps", "pytorch"])
def test_the_examples_are_valid(ringmaster, name):
    assert ringmaster("validate", "-f", ROOT / f"examples/{name}/trainingjob.yaml").returncode == 0
