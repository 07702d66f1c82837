"""Sums that travel between ranks in another form: what they are off by, the same bits on every rank, and what happens when ranks differ."""

import json
import subprocess
import textwrap

import pytest

from conftest import ROOT
from group import Group

SCRIPT = """
import hashlib, json, sys
import numpy as np, ringmaster as rm
rm.init()
rank, size = rm.rank(), rm.size()

def parts(count, dtype=np.float32):
    return [np.random.default_rng([7, r, count]).normal(size=count).astype(np.float32).astype(dtype) for r in range(size)]

def bits(a):
    return hashlib.sha256(a.tobytes()).hexdigest()[:16]

def show(**row):
    print(json.dumps(row), flush=True)
"""


@pytest.fixture
def run(env, sidecar_path, launch_path, python_path, client_library, tmp_path, wait_for):
    groups = []

    def start(script, ranks, extra=None, **variables):
        path = tmp_path / "train.py"
        path.write_text(SCRIPT + textwrap.dedent(script))
        variables = {**env, "PYTHONPATH": str(ROOT / "client/python"), "RINGMASTER_LIBRARY_DIR": str(client_library.parent), **variables}
        group = Group(sidecar_path, launch_path, {f"worker-{i}": [python_path, path] for i in range(ranks)}, env=variables, restart_policy="Never")
        group.extra = extra or {}
        groups.append(group)
        group.start()
        wait_for(lambda: all(p.poll() is not None for p in group.launchers.values()), 90, "the end of the job")
        for member in group.members:
            assert group.launchers[member].returncode == 0, (group.dir / member / "err").read_text()[-3000:] + group.logs()[-3000:]
        return [[json.loads(line) for line in group.out(member).splitlines()] for member in group.members]

    yield start
    for group in groups:
        group.close()


@pytest.mark.parametrize("ranks", [2, 4])
def test_sums_are_as_near_as_their_form_can_be(run, ranks):
    shown = run(
        """
        for count in (1, 3, 1000, 300001, 3000001):
            a = parts(count)
            right = np.sum([x.astype(np.float64) for x in a], axis=0)
            for wire in ("plain", "float16", "bfloat16", "int8"):
                total = rm.allreduce(a[rank], op=rm.Sum, name=f"s.{wire}.{count}", wire=wire)
                mean = rm.allreduce(a[rank], op=rm.Average, name=f"a.{wire}.{count}", wire=wire, prescale_factor=0.5, postscale_factor=4)
                show(wire=wire, count=count, off=float(np.abs(total - right).max()), off_mean=float(np.abs(mean - 2 * right / size).max()),
                     bits=[bits(total), bits(mean)], large=float(np.abs(right).max()))
        """,
        ranks,
    )
    assert all(rows == shown[0] for rows in shown[1:]), "the same bits on every rank"
    assert len(shown[0]) == 20
    for row in shown[0]:
        # each part and the sum are rounded once; parts are below 6
        allowed = {"plain": 1e-6, "float16": 0.5**11, "bfloat16": 0.5**8, "int8": 1 / 200}[row["wire"]] * (6 * ranks + row["large"])
        assert row["off"] <= allowed and row["off_mean"] <= 2 * allowed, row
        travels = row["wire"] != "plain" and row["count"] > 20000  # what is smaller goes along with its announcement
        assert not travels or row["off"] > 1e-4, "it did travel in that form"


def test_exact_sums_of_16_bits_are_within_one_unit_of_the_true_sum(run):
    shown = run(
        """
        def ulps(got, right):
            step = np.spacing(np.abs(right).astype(np.float16)).astype(np.float64)
            return float((np.abs(got.astype(np.float64) - right) / step).max())

        for count in (5, 2000, 400001):
            a = parts(count, np.float16)
            right = np.sum([x.astype(np.float64) for x in a], axis=0)
            exact = rm.allreduce(a[rank], op=rm.Sum, name=f"e.{count}", wire="exact")
            plain = rm.allreduce(a[rank], op=rm.Sum, name=f"p.{count}")
            show(exact=ulps(exact, right), plain=ulps(plain, right), bits=bits(exact))
        """,
        4,
    )
    assert all(rows == shown[0] for rows in shown[1:])
    assert all(row["exact"] <= 0.5001 for row in shown[0]), shown[0]
    assert shown[0][-1]["plain"] > 1, "what it is for"


def test_a_job_says_it_for_all_sums_that_it_goes_with(run):
    shown = run(
        """
        a = parts(300000)
        show(f32=bits(rm.allreduce(a[rank], op=rm.Sum, name="f")), asked=bits(rm.allreduce(a[rank], op=rm.Sum, name="g", wire="float16")),
             plain=bits(rm.allreduce(a[rank], op=rm.Sum, name="h", wire="plain")),
             right=float(rm.allreduce(np.arange(70000.0), op=rm.Sum, name="d")[69999]), most=int(rm.allreduce(np.arange(9) + rank, op=rm.Max, name="i")[8]))
        """,
        2,
        RINGMASTER_WIRE="float16",
    )
    assert shown[0] == shown[1]
    (row,) = shown[0]
    assert row["f32"] == row["asked"] != row["plain"] and row["right"] == 2 * 69999.0 and row["most"] == 9


def test_fused_and_repeated_sums_have_the_same_bits(run):
    shown = run(
        """
        a = [parts(count)[rank] for count in (900, 70001, 33, 256, 5000)]
        for wire in ("bfloat16", "int8"):
            once = [bits(rm.allreduce(x, op=rm.Sum, name=f"o{i}", wire=wire)) for i, x in enumerate(a)]
            for turn in range(10):
                order = np.random.default_rng([rank, turn]).permutation(len(a))
                handles = {i: rm.allreduce_async(a[i], op=rm.Sum, name=f"o{i}", wire=wire) for i in order}
                assert [bits(handles[i].synchronize()) for i in range(len(a))] == once, (wire, turn)
            show(once=once)
        """,
        3,
    )
    assert shown[0] == shown[1] == shown[2] and len(shown[0]) == 2


def test_ranks_that_ask_for_different_forms_hear_who_asked_for_what(run):
    script = """
        try:
            rm.allreduce(np.ones(100000, np.float32), name="w", op=rm.Sum, wire=WIRE)
            show(said="")
        except rm.MismatchError as error:
            show(said=str(error))
    """
    shown = run(script.replace("WIRE", '"int8" if rank else None'), 2)
    for (row,) in shown:
        assert "int8 on the wire" in row["said"] and "rank 1 (worker-1)" in row["said"], row
    shown = run(script.replace("WIRE", "None"), 2, extra={"worker-1": {"RINGMASTER_WIRE": "bfloat16"}})
    assert all("bfloat16 on the wire" in row["said"] and "rank 1 (worker-1)" in row["said"] for (row,) in shown), shown


def test_what_cannot_be_is_refused_in_words(run):
    shown = run(
        """
        for dtype, op, wire in (("float64", rm.Sum, "float16"), ("float32", rm.Max, "int8"), ("float32", rm.Sum, "exact"), ("float32", rm.Sum, "zip")):
            try:
                rm.allreduce(np.ones(3, dtype), op=op, wire=wire)
            except ValueError as error:
                show(said=str(error))
        """,
        1,
    )
    words = ["sums and averages, of float32", "sums and averages, of float32", "exact of float16 and bfloat16", "known are plain, float16"]
    assert len(shown[0]) == 4 and all(word in row["said"] for word, row in zip(words, shown[0])), shown


# A byte that the network changes on the way: what is sent as the Nth piece of at least 4 KiB goes out with one bit turned.
FLIP = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static int left = 20;

ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    static ssize_t (*real)(int, const struct msghdr *, int);
    if (real == NULL)
        real = (ssize_t (*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
    size_t last = m->msg_iovlen - 1, bytes = m->msg_iov[last].iov_len;
    if (bytes < 4096 || left-- != 0)
        return real(fd, m, flags);
    struct iovec parts[16];
    struct msghdr changed = *m;
    unsigned char *copy = malloc(bytes);
    memcpy(parts, m->msg_iov, m->msg_iovlen * sizeof *parts);
    memcpy(copy, parts[last].iov_base, bytes);
    copy[1234] ^= 4;
    parts[last].iov_base = copy;
    changed.msg_iov = parts;
    ssize_t n = real(fd, &changed, flags);
    free(copy);
    return n;
}
"""

DAMAGED = """
    total = np.zeros(1)
    try:
        for step in range(100):
            total = rm.allreduce(np.full(200000, step + 1.0, np.float32), op=rm.Sum, name="gradient")
            assert (total == (step + 1) * size).all(), "wrong"
        show(said="", step=step)
    except rm.PeerLostError as error:
        show(said=str(error), step=step)
    except AssertionError as error:
        show(said=str(error), step=step)
"""


@pytest.mark.parametrize("checksums", ["true", "false"])
def test_a_byte_that_changes_on_the_way_is_found_and_named(env, run, tmp_path, checksums):
    (tmp_path / "flip.c").write_text(FLIP)
    library = tmp_path / "flip.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, tmp_path / "flip.c", "-ldl"], check=True)
    changed = {"worker-1": {"LD_PRELOAD": str(library)}}
    shown = run(DAMAGED, 2, extra=changed, RINGMASTER_CHECKSUMS=checksums)
    said = [rows[0]["said"] for rows in shown]
    if checksums == "false":
        assert "wrong" in said, "what the checksum is for"
    else:
        assert all("rank 1 (worker-1)" in words and '"allreduce.gradient' in words and "arrived damaged" in words for words in said), said
    assert len({rows[0]["step"] for rows in shown}) <= 2

