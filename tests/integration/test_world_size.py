"""A checkpoint of one number of ranks is restored by another: a whole job on the local runner, and the client's part on its own."""

import json
import signal
import textwrap

import pytest

from client_world import make_job, results, start  # noqa: F401 (fixtures)
from conftest import ROOT

# Begins at the step it finds, checks all that came back, saves the next step, and waits for the end of its attempt.
TRAIN = """
import json, os, sys, time
import numpy as np
import ringmaster as rm
from ringmaster import checkpoint
rm.init()
rank, size = rm.rank(), rm.size()
state = lambda step: {f"t{i}": np.random.default_rng([step, i]).normal(size=i * 500 + 1) for i in range(11)}
found = checkpoint.restore()
step = found.step if found else 0
if found:
    right = state(step)
    assert set(found.tensors) == set(right) and all((found.tensors[name] == right[name]).all() for name in right), sorted(found.tensors)
    assert found.extra == {"seed": step, "position": {"epoch": step}}, found.extra
    total = rm.allreduce(np.ones(1), op=rm.Sum, name="alive")
    assert total[0] == size
print(f"ranks {size} resumed {step}", flush=True)
if step + 1 == int(os.environ["LAST"]):
    sys.exit(0)
checkpoint.save(step + 1, state(step + 1), {"seed": step + 1, "position": {"epoch": step + 1, "next": rank}, **({"mine": 1} if rank else {})})
assert checkpoint.wait(60) == step + 1
print("saved", step + 1, flush=True)
time.sleep(600)
"""

WORLDS = (2, 4, 2, 4, 3, 8)


@pytest.mark.timeout_s(240)
def test_a_job_goes_on_with_more_ranks_and_with_fewer(ringmaster, ringmaster_start, write_job, job_dir, python_path, client_library, wait_for, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    variables = {"PYTHONPATH": ROOT / "client/python", "RINGMASTER_LIBRARY_DIR": client_library.parent, "LAST": len(WORLDS)}
    for step, ranks in enumerate(WORLDS):
        manifest = write_job({"Worker": (ranks, [python_path, script])}, env=variables)
        runner = ringmaster_start("run", *(["--resume"] if step else []), "-f", manifest, "--job-dir", job_dir)
        logs = lambda: ringmaster("logs", "--job-dir", job_dir).stdout  # noqa: E731
        if step + 1 == len(WORLDS):
            assert runner.wait(60) == 0, logs() + runner.err_path.read_text()
            break
        wait_for(lambda: runner.poll() is not None or logs().count(f"saved {step + 1}") == ranks, 60, f"{ranks} ranks have saved")  # noqa: B023
        assert runner.poll() is None, logs() + runner.out_path.read_text() + runner.err_path.read_text()
        runner.send_signal(signal.SIGINT)
        assert runner.wait(30) == 130
    said = logs()
    for step, ranks in enumerate(WORLDS):
        assert said.count(f"ranks {ranks} resumed {step}\n") == ranks, said
    status = json.loads((job_dir / "status.json").read_text())
    assert status["phase"] == "Succeeded" and status["restarts"] == 0, "no attempt needed a second try"
    assert "values of `extra` that differed among them are dropped: mine, position.next" in said, said


STATE = """
state = {f"t{i}": np.random.default_rng(i).normal(size=i * 1000).astype(np.float32) for i in range(5)} | {"n": np.int64(3)}
"""
RESTORE = """
import logging
found = checkpoint.restore(RESPLIT)
same = set(found.tensors) == set(state) and all((found.tensors[k] == state[k]).all() and found.tensors[k].dtype == state[k].dtype for k in state)
show(step=found.step, same=bool(same), extra=found.extra)
"""


def saved_by(make_job, results, size):
    with make_job(size=size) as job:
        results(job, STATE + "checkpoint.save(20, state, {'epoch': 1, 'mine': rank}); show(ok=1)")
        return {rank: client.staged[0][1] for rank, client in job.clients.items()}


@pytest.mark.parametrize(("saved", "size"), [(4, 1), (3, 2), (1, 3)])
def test_the_parts_of_all_who_saved_come_back(make_job, results, saved, size):
    images = saved_by(make_job, results, saved)
    with make_job(size=size) as job:
        job.resume_step, job.restore_images, job.restore_world = 20, images, saved
        shown = results(job, STATE + RESTORE.replace("RESPLIT", ""))
        kept = {"epoch": 1, **({"mine": 0} if saved == 1 else {})}  # what one rank had, all had
        assert shown == [{"step": 20, "same": True, "extra": kept}] * size
        shown = results(job, STATE + RESTORE.replace("RESPLIT", "lambda extras: {'all': [e['mine'] for e in extras], 'rank': rank}"))
    for rank, row in enumerate(shown):
        assert row["extra"] == {"all": list(range(saved)), "rank": rank}


def test_one_part_of_another_world_that_is_damaged_is_an_error_on_every_rank(make_job, results):
    images = saved_by(make_job, results, 3)
    script = "try: checkpoint.restore(); show(said='')\nexcept rm.RingmasterError as error: show(said=str(error))"
    for case, broken, words in (
        ("cut", {**images, 2: images[2][:-8]}, "the image of rank 2 is damaged"),
        ("another's", {**images, 2: images[1]}, "two ranks hold tensor"),
        ("of a later release", {**images, 2: images[2].replace(b'"replicated"', b'"spread-out"')}, "layout 'spread-out'"),
    ):
        with make_job(size=2) as job:
            job.resume_step, job.restore_images, job.restore_world = 20, broken, 3
            shown = results(job, script)
        assert all(words in row["said"] for row in shown), (case, shown)


@pytest.mark.parametrize(
    ("extras", "alike", "differing"),
    [
        ([{}, {}], {}, []),
        ([{"a": 1}, {"a": 1}], {"a": 1}, []),
        ([{"a": 1}, {"a": 2}], {}, ["a"]),
        ([{"a": 1}, {}], {}, ["a"]),
        ([{}, {"a": None}], {}, ["a"]),
        ([{"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}}], {"a": {"b": 1}}, ["a.c"]),
        ([{"a": {"b": 1}}, {"a": [1]}], {}, ["a"]),
        ([{"a": 1, "z": [1, {"x": 2}]}], {"a": 1, "z": [1, {"x": 2}]}, []),
    ],
)
def test_what_ranks_have_alike(results, extras, alike, differing):
    assert results(None, f"show(got=checkpoint.common_extra({extras!r}))") == [{"got": [alike, differing]}]
