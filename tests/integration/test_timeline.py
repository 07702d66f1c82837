"""The time line: what each rank records while it trains, and what `ringmaster timeline` makes of it."""

import fcntl
import json
import subprocess
import time

import pytest

from conftest import BUILD
from group import Group

MEMBERS = ["chief-0", "worker-0", "worker-1"]


@pytest.fixture
def group(keep, sidecar_path, launch_path, env, mark, tmp_path):
    variables = {**env, "RM_TEST_MARK": mark, "HOROVOD_TIMELINE": str(tmp_path / "run.json"), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    return keep(Group(sidecar_path, launch_path, dict.fromkeys(MEMBERS, [BUILD / "tests/programs/reducer"]), env=variables))


def files(tmp_path):
    return [tmp_path / name for name in ("run.json", "run.rank-1.json", "run.rank-2.json")]


def read(path):
    """As a reader of a time line that grows has to: with a shared lock."""
    with open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        return file.read()


def check(events, balanced):
    """What Chrome's viewer wants: every event has a phase, times do not go back in a row, ends have a beginning."""
    open_spans, last = {}, {}
    for event in events:
        assert event["ph"] in "MBEi", event
        if event["ph"] == "M":
            continue
        row = (event["pid"], event["tid"])
        assert event["ts"] >= last.get(row, 0), (event, last.get(row))
        last[row] = event["ts"]
        open_spans.setdefault(row, [])
        if event["ph"] == "B":
            open_spans[row].append(event["name"])
        elif event["ph"] == "E":
            assert open_spans[row], event
            open_spans[row].pop()
    assert not balanced or not any(open_spans.values()), open_spans


def test_recorded_and_put_together(group, wait_for, tmp_path):
    group.start()
    wait_for(group.running, what="all running")
    wait_for(lambda: all(path.exists() and path.stat().st_size > 200_000 for path in files(tmp_path)), what="time lines of some length")
    for _ in range(50):  # it is whole at any time
        for path in files(tmp_path):
            assert json.loads(read(path))[0]["ph"] == "M"
        time.sleep(0.01)

    assert group.state("worker-1")["pid"]
    group.sidecars["worker-1"].kill()  # the round ends: so do all spans
    wait_for(lambda: all("PEER_LOST" in read(path) for path in files(tmp_path)[:2]), what="the loss in the time line")

    rank0 = json.loads(read(files(tmp_path)[0]))
    check(rank0, balanced=False)
    names = {event.get("name") for event in rank0}
    assert {"NEGOTIATE_ALLREDUCE", "ALLREDUCE", "QUEUE", "RING_ALLREDUCE", "MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER",
            "CYCLE_START", "1", "2", "PEER_LOST"} <= names
    tensors = {event["args"]["name"] for event in rank0 if event.get("name") == "process_name"}
    assert {name.partition("#")[0] for name in tensors} == {f"gradient-{i}" for i in range(6)}  # large ones travel in pieces

    merged = tmp_path / "merged.json"
    done = subprocess.run([BUILD / "bin/ringmaster", "timeline", tmp_path / "run.json", "-o", merged], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "of 3 ranks" in done.stderr
    events = json.loads(merged.read_text())
    check(events, balanced=False)
    processes = {event["pid"]: event["args"]["name"] for event in events if event.get("name") == "process_name"}
    assert processes == {0: "rank 0 (chief-0)", 1: "rank 1 (worker-0)", 2: "rank 2 (worker-1)"}
    # One machine has one clock: the n-th negotiation of a tensor ends on all ranks within what a message takes,
    # and what a busy machine lets a rank wait.
    went = {rank: [e["ts"] for e in events if e["pid"] == rank and e.get("name") == "ALLREDUCE"][:200] for rank in processes}
    apart = sorted(abs(a - b) for a, b in zip(went[0], went[1]))
    assert apart[len(apart) // 2] < 500_000, "half of them more than half a second apart"


def test_what_cannot_be_put_together_is_said(tmp_path):
    (tmp_path / "other.json").write_text('[\n{"ph":"M","name":"x"}\n]')
    (tmp_path / "broken.json").write_text('[\n{"ph":')
    for words, expected in [
        ([tmp_path], "there is no time line"),
        ([tmp_path / "other.json"], "is no time line of Ringmaster"),
        ([tmp_path / "broken.json"], "line 2"),
        ([tmp_path / "absent.json"], "absent.json"),
        ([], "of what?"),
    ]:
        done = subprocess.run([BUILD / "bin/ringmaster", "timeline", *words], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode in (2, 3) and expected in done.stderr, (words, done.stderr)
        assert not (tmp_path / "timeline.json").exists()
