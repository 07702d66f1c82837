"""A checkpoint of one number of ranks is restored by another: a whole job on the local runner, and the client's part on its own."""

import json
import signal
import textwrap

import pytest

from client_world import make_job, results, start  # noqa: F401 (fixtures)
from conftest import PATIENCE_S, ROOT

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


def test_a_job_goes_on_with_more_ranks_and_with_fewer(ringmaster, ringmaster_start, write_job, job_dir, python_path, client_library, wait_for, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAIN))
    variables = {"PYTHONPATH": ROOT / "client/python", "RINGMASTER_LIBRARY_DIR": client_library.parent, "LAST": len(WORLDS)}
    for step, ranks in enumerate(WORLDS):
        manifest = write_job({"Worker": (ranks, [python_path, script])}, env=variables)
        runner = ringmaster_start("run", *(["--resume"] if step else []), "-f", manifest, "--job-dir", job_dir)
        logs = lambda: ringmaster("logs", "--job-dir", job_dir).stdout  # noqa: E731
        if step + 1 == len(WORLDS):
            assert runner.wait(PATIENCE_S) == 0, logs() + runner.err_path.read_text()
            break
        wait_for(lambda: runner.poll() is not None or logs().count(f"saved {step + 1}") == ranks, what=f"{ranks} ranks have saved")  # noqa: B023
        assert runner.poll() is None, logs() + runner.out_path.read_text() + runner.err_path.read_text()
        runner.send_signal(signal.SIGINT)
        assert runner.wait(PATIENCE_S) == 130
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


# ---- tensors that are spread over the ranks ----------------------------------------------------------------------------------------

SPREAD = """
from ringmaster.boxes import Box
from ringmaster.checkpoint import Shard
rows = np.random.default_rng(1).normal(size=(11, 6)).astype(np.float32)
grid = np.arange(4 * 8 * 2, dtype=np.int64).reshape(4, 8, 2)
bias = np.arange(5.0)
def cut(n, ranks, r):  # as even as it can be; the last ones may have nothing
    step = -(-n // ranks)
    return min(r * step, n), min(step, max(0, n - r * step))
def row_box(ranks, r):
    at, n = cut(11, ranks, r)
    return Box((at, 0), (n, 6))
def grid_box(ranks, r):  # two columns of ranks, when there are that many
    down = max(1, ranks // 2)
    across = ranks // down if ranks % down == 0 else 1
    if r >= down * across:
        return Box((0, 0, 0), (0, 0, 0))
    (at, n), (left, m) = cut(4, down, r % down), cut(8, across, r // down)
    return Box((at, left, 0), (n, m, 2))
def part(whole, box):
    return whole[tuple(slice(b, b + n) for b, n in zip(*box))]
"""
SPREAD_SAVE = """
a, b = row_box(size, rank), grid_box(size, rank)
shards = {"rows": Shard(part(rows, a), a.offset, rows.shape), "grid": Shard(part(grid, b), b.offset, grid.shape)}
show(saved=checkpoint.save(20, {"bias": bias}, {}, shards))
"""
SPREAD_RESTORE = """
found = checkpoint.restore(boxes={"rows": row_box(size, rank), "grid": grid_box(size, rank), "bias": Box((1,), (3,))})
same = [np.array_equal(found.tensors[n], part(w, b)) and found.tensors[n].dtype == w.dtype
        for n, w, b in (("rows", rows, row_box(size, rank)), ("grid", grid, grid_box(size, rank)), ("bias", bias, Box((1,), (3,))))]
found = checkpoint.restore()
show(parts=same, wholes=[np.array_equal(found.tensors[n], w) for n, w in (("rows", rows), ("grid", grid), ("bias", bias))], names=sorted(found.tensors))
"""


def spread_by(make_job, results, size, more=""):
    with make_job(size=size) as job:
        assert results(job, SPREAD + more + SPREAD_SAVE) == [{"saved": True}] * size
        return {rank: client.staged[0][1] for rank, client in job.clients.items()}


@pytest.mark.parametrize(("saved", "size"), [(4, 2), (4, 3), (2, 4)])
def test_spread_tensors_are_cut_anew(make_job, results, saved, size):
    images = spread_by(make_job, results, saved)
    with make_job(size=size) as job:
        job.resume_step, job.restore_images, job.restore_world = 20, images, saved
        shown = results(job, SPREAD + SPREAD_RESTORE)
    assert shown == [{"parts": [True] * 3, "wholes": [True] * 3, "names": ["bias", "grid", "rows"]}] * size


def test_spread_tensors_that_are_not_whole_are_errors_on_every_rank(make_job, results):
    good = spread_by(make_job, results, 2)
    overlap = spread_by(make_job, results, 2, "row_box = lambda ranks, r: Box((r * 5, 0), (6, 6))\n")
    gap = spread_by(make_job, results, 2, "row_box = lambda ranks, r: Box((r * 6, 0), (5, 6))\n")
    script = "try: checkpoint.restore(boxes=BOXES); show(said='')\nexcept rm.RingmasterError as error: show(said=str(error))"
    outside = good[1].replace(b'[[6, 0], [11, 6]]'.replace(b'"', b'\\"'), b'[[9, 0], [11, 6]]')
    assert outside != good[1]
    for case, images, wanted, words in (
        ("overlap", overlap, "None", "tensor 'rows' is not whole: the parts at [0, 0] and [5, 0] overlap"),
        ("gap", gap, "None", "tensor 'rows' is not whole: its parts hold 60 of 66 elements"),
        ("outside", {0: good[0], 1: outside}, "None", "`boxes` in the image of rank 1 cannot be read: a part lies outside its tensor"),
        ("no such tensor", good, "{'x': ((0,), (1,))} if rank else None", "rank 1 wants a part of 'x', which it does not have"),
        ("too much", good, "{'bias': ((3,), (3,))} if rank else None", "rank 1 wants the part of 'bias' at [3] of shape [3]"),
    ):
        with make_job(size=2) as job:
            job.resume_step, job.restore_images = 20, images
            shown = results(job, script.replace("BOXES", wanted))
        assert all(words in row["said"] for row in shown), (case, shown)


def test_boxes_against_counting_every_element(results):
    """Random boxes of small tensors, by a table of who holds which element."""
    script = """
    from ringmaster.boxes import Box, fits, intersect, slices, uncovered
    rng = np.random.default_rng(7)
    seen = {"whole": 0, "not": 0, "common": 0, "none": 0}
    for _ in range(4000):
        shape = tuple(rng.integers(0, 4, rng.integers(0, 4)).tolist())
        cuts = [sorted({0, n, *rng.integers(0, n + 1, 2).tolist()}) for n in shape]
        tiles = [Box(tuple(at), tuple(n)) for at, n in [((), ())]]
        for cut in cuts:
            tiles = [Box(t.offset + (a,), t.shape + (b - a,)) for t in tiles for a, b in (list(zip(cut, cut[1:])) or [(0, 0)])]
        change = rng.integers(0, 4)
        if change == 1:
            tiles.pop()
        elif change == 2:
            tiles.append(tiles[rng.integers(0, len(tiles))])
        elif change == 3 and shape:
            offset = tuple(int(rng.integers(0, n + 1)) for n in shape)
            tiles.append(Box(offset, tuple(int(rng.integers(0, n - o + 1)) for n, o in zip(shape, offset))))
        count = np.zeros(shape, int)
        for t in tiles:
            assert fits(t, shape)
            count[tuple(slice(o, o + n) for o, n in zip(*t))] += 1
        assert (uncovered(shape, tiles) is None) == bool((count == 1).all()), (shape, tiles, count)
        seen["whole" if (count == 1).all() else "not"] += 1
        for a in tiles[:3]:
            for b in tiles[-3:]:
                both = np.zeros(shape, int)
                for t in (a, b):
                    both[tuple(slice(o, o + n) for o, n in zip(*t))] += 1
                found = intersect(a, b)
                inside = np.zeros(shape, bool)
                if found is not None:
                    part = np.zeros(a.shape, bool)
                    part[slices(found, a)] = True
                    inside[tuple(slice(o, o + n) for o, n in zip(*a))] = part
                assert np.array_equal(inside, both == 2), (a, b, found)
                seen["common" if found else "none"] += 1
    show(least=min(seen.values()), outside=[fits(Box(o, s), (3, 2)) for o, s in (((0, 0), (3, 2)), ((1, 0), (3, 2)), ((-1, 0), (1, 1)), ((0,), (3,)))])
    """
    ((row),) = results(None, script)
    assert row["least"] > 100 and row["outside"] == [True, False, False, False], row
