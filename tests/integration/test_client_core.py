"""libringmaster.so and the numpy side of the package, against a sidecar that can be told to misbehave (fake_sidecar.py)."""

import json
import os
import re
import struct
import subprocess
import sys
import textwrap

import pytest
import safetensors.numpy

from client_world import PRELUDE, make_job, results, start  # noqa: F401 (fixtures)
from conftest import PATIENCE_S, ROOT, wait_until
from fake_sidecar import CLIENT_HELLO, CLIENT_READY, COMMITTED, FINISHED, FLUSHED, REFUSED, RESTORE_READY, SLOT_STAGED
from fake_sidecar import SLOTS_READY

def test_ranks_reduce_broadcast_and_gather(make_job, results):
    with make_job(size=3) as job:
        shown = results(
            job,
            """
            x = np.arange(4, dtype=np.float32) + rank
            show(sum=rm.allreduce(x, op=rm.Sum, name="s").tolist(),
                 mean=rm.allreduce(x, name="m").tolist(),
                 scaled=rm.allreduce(x, op=rm.Sum, prescale_factor=2.0, postscale_factor=0.5, name="p").tolist(),
                 low=rm.allreduce(np.int64(rank), op=rm.Min, name="l").item(),
                 high=rm.allreduce(np.int32([rank]), op=rm.Max, name="h").tolist(),
                 product=rm.allreduce(np.float64(rank + 1), op=rm.Product, name="pr").item(),
                 half=rm.allreduce(np.float16([rank]), op=rm.Sum, name="f16").tolist(),
                 root=rm.broadcast(np.float64([rank, 7]), 1, name="b").tolist(),
                 flags=rm.broadcast(np.array([rank == 2]), 2, name="f").tolist(),
                 rows=rm.allgather(np.full((rank, 2), rank, np.int32), name="g").tolist(),
                 group=[a.tolist() for a in rm.grouped_allreduce([x, np.float64([rank]), x[:0], x[:1]], op=rm.Sum, name="gr")],
                 sent=rm.broadcast_object({"from": rank}, root_rank=2), all=rm.allgather_object("x" * rank),
                 empty=rm.allreduce(np.zeros((0, 3))).shape, names=[rm.local_rank(), rm.local_size(), rm.cross_rank(), rm.cross_size()])
            rm.barrier()
            """,
        )
        ranks = {name for _, name in job.names if name.startswith("allreduce.")}
    expected = {
        "sum": [3.0, 6.0, 9.0, 12.0],
        "mean": [1.0, 2.0, 3.0, 4.0],
        "scaled": [3.0, 6.0, 9.0, 12.0],
        "low": 0,
        "high": [2],
        "product": 6.0,
        "half": [3.0],
        "root": [1.0, 7.0],
        "flags": [True],
        "rows": [[1, 1], [2, 2], [2, 2]],
        "group": [[3.0, 6.0, 9.0, 12.0], [3.0], [], [3.0]],
        "sent": {"from": 2},
        "all": ["", "x", "xx"],
        "empty": [0, 3],
    }
    for rank, row in enumerate(shown):
        assert row.pop("names") == [0, 1, rank, 3]
        assert row == expected
    assert "allreduce.s" in ranks


def test_tensors_larger_than_a_share_of_the_arena_go_in_pieces(make_job, results):
    with make_job(size=2, arena_bytes=1 << 20) as job:  # pieces of up to 32 KiB
        shown = results(
            job,
            """
            x = np.random.default_rng(rank).integers(-1000, 1000, 300_001).astype(np.float32)
            whole = rm.allreduce(x, op=rm.Sum, name="big")
            parts = rm.grouped_allreduce([x[:100_000], x[100_000:100_007], x[100_007:]], op=rm.Sum, name="parts")
            sent = rm.broadcast(x, 1, name="sent")
            other = [np.random.default_rng(r).integers(-1000, 1000, 300_001).astype(np.float32) for r in range(2)]
            show(whole=bool((whole == other[0] + other[1]).all()), parts=bool((np.concatenate(parts) == whole).all()),
                 sent=bool((sent == other[1]).all()))
            """,
        )
        pieces = [name for rank, name in job.names if rank == 0 and name.startswith("allreduce.big")]
    assert shown == [{"whole": True, "parts": True, "sent": True}] * 2
    assert len(pieces) == 38 and pieces[0] == "allreduce.big" and set(pieces[1:]) == {f"allreduce.big#{k}" for k in range(1, 38)}


def test_more_tensors_than_the_arena_holds_in_another_order_on_each_rank(make_job, results):
    with make_job(size=2, arena_bytes=1 << 18) as job:
        shown = results(
            job,
            """
            sizes = [1000 + 997 * i for i in range(60)]  # 7 MB through 256 KiB: pieces 0 alone take a good part
            order = list(range(60))
            np.random.default_rng(rank).shuffle(order)
            sums = {}
            def one(i):
                sums[i] = rm.allreduce(np.full(sizes[i], rank + i, np.float32), op=rm.Sum, name=f"t{i}")
            threads = [threading.Thread(target=one, args=(i,)) for i in order]
            for t in threads: t.start()
            for t in threads: t.join()
            show(ok=all((sums[i] == 2 * i + 1).all() and sums[i].size == sizes[i] for i in range(60)))
            """,
        )
    assert shown == [{"ok": True}] * 2


def test_ranks_that_disagree_on_the_size_of_a_large_tensor_all_hear_of_it(make_job, results):
    with make_job(size=2, arena_bytes=1 << 18) as job:  # pieces of up to 8 KiB
        shown = results(
            job,
            """
            said = []
            for mine in ((5000, 50_000), (4096, 8192), (8192, 12288), (20_000, 20_001), (4096, 4097)):
                try:
                    rm.allreduce(np.zeros(mine[rank], np.float32), op=rm.Sum, name=f"n{mine}")
                    said.append("none")
                except rm.MismatchError as error:
                    said.append(str(error))
            show(said=said, after=rm.allreduce(np.ones(3), op=rm.Sum, name="after").tolist())
            """,
        )
    for row in shown:
        assert row["after"] == [2.0, 2.0, 2.0]
        assert all(re.match(r'"allreduce.n.*": rank 0 sent \d+ elements, rank 1 sent \d+', said) for said in row["said"]), row


def test_what_was_copied_ahead_of_its_turn_is_given_back_when_the_tensor_fails(make_job, results):
    with make_job(size=2, arena_bytes=1 << 18) as job:  # room for eight pieces of up to 8 KiB beside the small ones
        shown = results(
            job,
            """
            failed = 0
            for i in range(40):
                try:
                    rm.allreduce(np.zeros(5000 + 45_000 * rank, np.float32), op=rm.Sum, name=f"n{i}")
                except rm.MismatchError:
                    failed += 1
            x = np.full(50_000, rank + 1, np.float32)
            show(failed=failed, after=bool((rm.allreduce(x, op=rm.Sum, name="after") == 3).all()))
            """,
        )
    assert shown == [{"failed": 40, "after": True}] * 2


def test_only_the_first_piece_of_a_tensor_goes_before_every_rank_has_it(make_job, start):
    with make_job(size=2) as job:
        job.hold = True
        ranks = start(
            job,
            """
            try:
                rm.allreduce(np.ones(300_000), op=rm.Sum, name="big")
            except rm.PeerLostError as error:
                show(said=str(error))
            """,
        )
        wait_until(lambda: len(job.names) == 2, timeout_s=60, what="both have sent piece 0")
        job.lose("peer lost: rank 1 (worker-1): connection closed")
        outcomes = [rank.communicate(timeout=60) for rank in ranks]
        assert sorted(job.names) == [(0, "allreduce.big"), (1, "allreduce.big")]
    for out, err in outcomes:
        assert "peer lost: rank 1 (worker-1): connection closed" in out, err


def test_buffers_of_the_arena_travel_without_a_copy(make_job, results):
    with make_job(size=2) as job:
        placed = []
        job.on_request = lambda client, request: placed.append((request["in_offset"], request["out_offset"])) and False
        shown = results(
            job,
            """
            import ctypes
            from ringmaster import _core
            lib = _core.library()
            def buffer():
                p = lib.rm_alloc(4096)
                return p, np.frombuffer((ctypes.c_float * 1024).from_address(p), np.float32)
            (p, x), (q, y) = buffer(), buffer()
            x[:] = rank
            handle = ctypes.c_uint64()
            none = _core.DONE_FN()
            for source, target in ((p, p), (p, q)):
                x[:] = rank
                assert lib.rm_allreduce(b"in place", source, target, 1024, 7, 1, 1.0, 1.0, none, None, ctypes.byref(handle)) == 0
                assert lib.rm_wait(handle, -1) == 0
            show(p=x.tolist()[:2], q=y.tolist()[:2], same=lib.rm_alloc(2 << 20) is None, why=lib.rm_error_text().decode(), gap=q - p)
            lib.rm_free(p); lib.rm_free(q)
            """,
        )
    assert [row["q"] for row in shown] == [[1.0, 1.0]] * 2 and [row["p"] for row in shown] == [[0.0, 0.0], [1.0, 1.0]]
    assert shown[0]["same"] and "8192 of 786432 bytes are taken" in shown[0]["why"]
    assert all(first == second for first, second in placed[:2])
    assert all(second - first == shown[0]["gap"] for first, second in placed[2:])


def test_names_that_are_too_long_are_shortened_alike_and_kept_apart(make_job, results):
    with make_job(size=2) as job:
        shown = results(
            job,
            """
            long = "x" * 200
            a = rm.allreduce(np.float32([rank]), op=rm.Sum, name=long + "a")
            b = rm.allreduce(np.float32([10 * rank]), op=rm.Sum, name=long + "b")
            show(a=a.tolist(), b=b.tolist())
            """,
        )
        names = {name for _, name in job.names}
    assert shown == [{"a": [1.0], "b": [10.0]}] * 2
    assert len(names) == 2 and all(len(name) <= 119 and re.search(r"~[0-9a-f]{16}$", name) for name in names)


def test_a_name_in_flight_cannot_be_used_again(make_job, results):
    with make_job(size=2) as job:
        job.hold = True
        shown = results(
            job,
            """
            import ctypes
            from ringmaster import _core
            lib = _core.library()
            x, handle, none = np.zeros(4, np.float32), ctypes.c_uint64(), _core.DONE_FN()
            def submit(name):
                return lib.rm_allreduce(name, x.ctypes.data, x.ctypes.data, 4, 7, 1, 1.0, 1.0, none, None, ctypes.byref(handle))
            first = submit(b"t")
            second = submit(b"t")
            why = lib.rm_error_text().decode()
            show(first=first, second=second, why=why, timeout=lib.rm_wait(handle, 50), said=lib.rm_error_text().decode(),
                 poll=lib.rm_poll(handle), nobody=lib.rm_poll(12345), other=submit(b"u"))
            """,
            ranks=1,  # the other never comes
        )[0]
    assert (shown["first"], shown["second"], shown["timeout"], shown["poll"], shown["other"]) == (0, -2, -7, 0, 0)
    assert shown["why"] == '"t" is in flight already: wait for it, or give this request another name'
    assert shown["said"] == '"t" is not done after 50 ms' and shown["nobody"] == -2


def test_a_lost_peer_ends_everything_in_flight_with_its_words(make_job, start):
    with make_job(size=2) as job:
        job.hold = True
        processes = start(
            job,
            """
            try:
                rm.allreduce(np.zeros(100_000, np.float32), name="x")
            except rm.PeerLostError as error:
                show(said=str(error), horovod=isinstance(error, rm.HorovodInternalError))
            """,
        )
        wait_until(lambda: len(job.names) == 2, what="both requests")
        job.lose("rank 1 (worker-0) is gone: connection reset")
        for process in processes:
            out, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, err
            assert json.loads(out) == {"said": '"allreduce.x": rank 1 (worker-0) is gone: connection reset', "horovod": True}


def test_a_dead_sidecar_ends_everything_and_what_comes_after(make_job, start):
    with make_job(size=2) as job:
        job.hold = True
        (process,) = start(
            job,
            """
            said = []
            def one(i):
                try: rm.allreduce(np.zeros(60_000, np.float32), name=f"x{i}")
                except rm.PeerLostError as error: said.append(str(error))
            threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]  # more than the arena holds
            for t in threads: t.start()
            for t in threads: t.join()
            later = []
            for call in (lambda: rm.allreduce(np.zeros(1)), lambda: checkpoint.save(1, {"x": np.zeros(3)}), lambda: rm.report(step=3)):
                try: later.append(call())
                except rm.PeerLostError as error: later.append(str(error))
            show(said=said, later=later)
            """,
            ranks=1,
        )
        wait_until(lambda: len(job.names) >= 4, what="requests in flight")
        job.drop(0)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
        shown = json.loads(out)
    assert len(shown["said"]) == 8 and all("the sidecar closed the connection" in said for said in shown["said"])
    assert shown["later"][0] == "the sidecar closed the connection" and "sidecar" in shown["later"][1] and shown["later"][2] is None


def bad_replies():
    def unknown(client, request):
        client.reply(0xDEAD0000BEEF)

    def twice(client, request):
        for _ in range(2):
            client.reply(request["id"], out_offset=client.results_next, out_count=1)

    def outside(client, request):
        client.reply(request["id"], out_offset=1 << 40, out_count=5)

    def overflow(client, request):
        client.reply(request["id"], out_offset=client.results_next, out_count=1 << 62)

    return [
        ("unknown id", unknown, "the engine answered a request that was never made"),
        ("answered twice", twice, "the engine answered a request that was never made"),
        ("a result outside", outside, "the engine named a result outside its memory"),
        ("a result too large", overflow, "the engine named a result outside its memory"),
    ]


@pytest.mark.parametrize("case, reply, words", bad_replies(), ids=[case for case, *_ in bad_replies()])
def test_replies_that_cannot_be_true_end_the_connection(make_job, results, case, reply, words):
    with make_job(size=2) as job:

        def answer(client, request):
            reply(client, request)
            return True

        job.on_request = answer
        shown = results(
            job,
            """
            said = []
            for call in (lambda: rm.allgather(np.zeros(3), name="a"), lambda: rm.allgather(np.zeros(3), name="b")):
                try: call(); said.append("")
                except rm.PeerLostError as error: said.append(str(error))
                except rm.RingmasterError as error: said.append("?" + str(error))
                time.sleep(0.1)
            show(said=said)
            """,
            ranks=1,
        )[0]
    assert any(words in said for said in shown["said"]), (case, shown)


def malformed():
    def raw(data, fds=()):
        return lambda client, payload: client.connection.sendall(data)

    def header(length, kind, fds=0):
        return struct.pack("<IHH", length, kind, fds)

    return [
        ("huge", raw(header(1 << 30, CLIENT_READY)), "bad message"),
        ("too many fds", raw(header(8, CLIENT_READY, 200) + bytes(8)), "bad message"),
        ("missing fds", raw(header(168, CLIENT_READY, 3) + bytes(168)), "announced 3 descriptors and sent 0"),
        ("short", raw(header(8, CLIENT_READY) + bytes(8)), "welcome has 8 bytes"),
        ("wrong kind", raw(header(8, COMMITTED) + bytes(8)), "answered with message 52"),
        ("refused", raw(header(8, REFUSED) + struct.pack("<I", CLIENT_HELLO) + b"busy"), "refuses this process: busy"),
        ("closed", lambda client, payload: client.connection.close(), "closed the connection"),
    ]


@pytest.mark.parametrize("case, answer, words", malformed(), ids=[case for case, *_ in malformed()])
def test_a_welcome_that_is_none_is_an_error_in_words(make_job, results, case, answer, words):
    with make_job(size=1) as job:

        def respond(client, payload):
            answer(client, payload)
            if client.connection.fileno() >= 0:
                job._forget(client)

        job.answers[CLIENT_HELLO] = respond
        script = """
        try: rm.init()
        except rm.RingmasterError as error: show(said=str(error), ready=rm.is_initialized())
        """
        shown = results(job, script, prelude=PRELUDE.replace("rm.init()\n", "").replace("rank, size = rm.rank(), rm.size()\n", ""))[0]
    assert words in shown["said"] and not shown["ready"]


def test_shared_memory_that_lies_is_refused(make_job, results):
    script = """
    try: rm.init()
    except rm.RingmasterError as error: show(said=str(error))
    """
    bare = PRELUDE.replace("rm.init()\n", "").replace("rank, size = rm.rank(), rm.size()\n", "")
    with make_job() as job:
        job.shm_magic = 7
        assert "must come from the same release" in results(job, script, prelude=bare)[0]["said"]
    with make_job() as job:
        job.entries = 100  # no power of two
        assert "areas outside itself" in results(job, script, prelude=bare)[0]["said"]


def test_a_process_of_an_older_round_or_of_no_round_is_refused(make_job, results):
    script = """
    try: rm.init()
    except rm.RingmasterError as error: show(said=str(error))
    """
    bare = PRELUDE.replace("rm.init()\n", "").replace("rank, size = rm.rank(), rm.size()\n", "")
    with make_job() as job:
        said = results(job, script, prelude=bare, RINGMASTER_FENCE="5")[0]["said"]
        assert said == "the sidecar refuses this process: fence 5 is not the current one"
        said = results(job, script, prelude=bare, RINGMASTER_FENCE="")[0]["said"]
        assert "not started by ringmaster-launch; unset RINGMASTER_SOCKET to run alone" in said


NOT_INITIALIZED = -1  # RM_NOT_INITIALIZED


def test_a_forked_child_cannot_use_it_and_does_not_disturb_its_parent(make_job, results):
    with make_job(size=2) as job:
        shown = results(
            job,
            """
            from ringmaster import _core
            r, w = os.pipe()
            child = os.fork()
            if child == 0:
                said = [rm.is_initialized()]
                for call in (lambda: rm.allreduce(np.zeros(1)), rm.init):
                    try: call()
                    except rm.RingmasterError as error: said.append(str(error))
                lib = _core.library()
                said += [lib.rm_poll(1), lib.rm_wait(1, -1), lib.rm_release(1)]
                os.write(w, json.dumps(said).encode())
                rm.shutdown()
                os._exit(0)
            os.waitpid(child, 0)
            show(child=json.loads(os.read(r, 4096)), parent=rm.allreduce(np.ones(2), op=rm.Sum, name="x").tolist())
            """,
        )
    for row in shown:
        assert row["child"] == [False] + ["this process was forked after rm_init; only the process that called rm_init can use it"] * 2 + [
            NOT_INITIALIZED,
            NOT_INITIALIZED,
            None,
        ]
        assert row["parent"] == [2.0, 2.0]


def test_results_of_gathers_are_handed_back(make_job, results):
    with make_job(size=2) as job:
        results(job, "show(n=[rm.allgather(np.zeros(2), name='g').size for _ in range(50)])")
        wait_until(lambda: len(job.freed) >= 99, what="results to be handed back")
        assert len({offset for rank, offset in job.freed if rank == 0}) >= 49


def test_reports_are_merged_sent_and_flushed(make_job, results):
    with make_job() as job:
        shown = results(
            job,
            """
            for i in range(500):
                rm.report(step=i, loss=1.0 / (i + 1)); rm.progress()
            rm.report(metrics={"accuracy": 0.5, "odd": float("inf")})
            rm.report(total_steps=500, metrics={"weights_hash": "ab" * 32})
            said = []
            for bad in ("[]", '{"step":', '{"step": NaN}', '{"speed": 1}', '{"step": "x"}', '{"metrics": {"a": []}}', '{} x'):
                from ringmaster import _core
                code = _core.library().rm_report(bad.encode())
                said.append((code, _core.library().rm_error_text().decode()))
            rm.shutdown()
            show(said=said)
            """,
        )[0]
        client = job.clients[0]
        wait_until(lambda: client.connection.fileno() < 0, what="the connection to end")
        reports = [json.loads(text) for text in client.reports]
    assert 1 <= len(reports) <= 20
    merged = {}
    for report in reports:
        merged.update({k: v for k, v in report.items() if k != "metrics"})
        merged.update(report.get("metrics", {}))
    assert merged == {
        "step": 499,
        "loss": 0.002,
        "accuracy": 0.5,
        "odd": "inf",
        "total_steps": 500,
        "weights_hash": "ab" * 32,
    }
    assert all(code == -2 and text.startswith("report: ") for code, text in shown["said"])
    assert FINISHED not in [kind for _, kind in job.log]


def test_progress_is_counted_in_shared_memory(make_job, start):
    with make_job() as job:
        (process,) = start(job, "[rm.progress() for _ in range(42)]; show(ok=1); time.sleep(1000)")
        wait_until(lambda: 0 in job.clients and job.clients[0].memory is not None and job.clients[0].progress == 42, what="42 steps")
        process.kill()


def test_a_checkpoint_is_one_that_stock_safetensors_reads(make_job, results):
    with make_job(size=2) as job:
        shown = results(
            job,
            """
            state = {f"layer{i}/kernel": np.random.default_rng(i).normal(size=(i + 1, 300)).astype(np.float32) for i in range(6)}
            state |= {"step": np.int64(7), "flag": np.array([True]), "half": np.ones(3, np.float16), "empty": np.zeros((0, 4))}
            saved = checkpoint.save(7, state, {"epoch": 2, "rank": rank})
            show(saved=saved, committed=checkpoint.wait(), again=checkpoint.save(8, state, {}), third=checkpoint.save(9, state))
            """,
        )
        images = {rank: client.staged[0] for rank, client in job.clients.items()}
    assert shown == [{"saved": True, "committed": 7, "again": True, "third": True}] * 2
    held = {}
    for rank, (step, image) in images.items():
        assert step == 7
        (length,) = struct.unpack_from("<Q", image)
        assert (8 + length) % 4096 == 0
        tensors = safetensors.numpy.load(image)
        assert not set(tensors) & set(held)
        held.update(tensors)
    assert len(held) == 10 and held["layer3/kernel"].shape == (4, 300) and held["step"] == 7
    sizes = [len(image) for _, image in images.values()]
    assert max(sizes) - min(sizes) < 4096


def test_a_save_is_skipped_while_both_slots_are_busy(make_job, results):
    with make_job() as job:
        job.commits = False
        shown = results(job, "show(saved=[checkpoint.save(i, {'x': np.ones(3)}) for i in range(3)])")
        states = [job.clients[0].slot_state(i) for i in range(2)]
    assert shown[0]["saved"] == [True, True, False] and states == [SLOT_STAGED, SLOT_STAGED]


def test_what_was_saved_comes_back_on_every_rank(make_job, results):
    state = """
state = {f"t{i}": np.random.default_rng(i).normal(size=i * 1000).astype(np.float32) for i in range(5)} | {"n": np.int64(3)}
"""
    with make_job(size=3) as job:
        results(job, state + "checkpoint.save(20, state, {'epoch': 1, 'mine': rank}); show(ok=1)")
        images = {rank: client.staged[0][1] for rank, client in job.clients.items()}
    with make_job(size=3) as job:
        job.resume_step, job.restore_images = 20, images
        shown = results(
            job,
            state
            + """
step, tensors, extra = checkpoint.restore()
same = set(tensors) == set(state) and all((tensors[k] == state[k]).all() and tensors[k].dtype == state[k].dtype for k in state)
show(step=step, same=bool(same), shape=tensors["n"].shape, extra=extra, resume=checkpoint.resume_step())
            """,
        )
    for rank, row in enumerate(shown):
        assert row == {"step": 20, "same": True, "shape": [], "extra": {"epoch": 1, "mine": rank}, "resume": 20}


def test_a_checkpoint_that_is_not_complete_is_an_error(make_job, results):
    with make_job(size=2) as job:
        results(job, "checkpoint.save(5, {'a': np.ones(9), 'b': np.ones(9)}); show(ok=1)")
        images = {rank: client.staged[0][1] for rank, client in job.clients.items()}
    script = """
    try: checkpoint.restore(); show(said="")
    except rm.RingmasterError as error: show(said=str(error))
    """
    for case, broken in (
        ("the other's image", {0: images[0], 1: images[0]}),
        ("cut", {0: images[0], 1: images[1][:-8]}),
        ("header", {0: images[0], 1: b"\xff" * len(images[1])}),
    ):
        with make_job(size=2) as job:
            job.resume_step, job.restore_images = 5, broken
            shown = results(job, script)
            assert all("checkpoint" in row["said"] for row in shown), (case, shown)


def test_no_checkpoint_is_none(make_job, results):
    with make_job(size=2) as job:
        assert results(job, "show(got=checkpoint.restore(), step=checkpoint.resume_step())") == [{"got": None, "step": None}] * 2


@pytest.mark.parametrize("kind", [SLOTS_READY, RESTORE_READY, FLUSHED])
def test_an_answer_that_is_too_short_ends_the_connection(make_job, results, kind):
    asked = {SLOTS_READY: 34, RESTORE_READY: 36, FLUSHED: 37}[kind]
    call = {SLOTS_READY: "checkpoint.save(1, {'x': np.ones(2)})", RESTORE_READY: "checkpoint.restore()", FLUSHED: "checkpoint.wait()"}[kind]
    with make_job() as job:
        job.resume_step = 1
        job.answers[asked] = lambda client, payload: client.send(kind, b"\1")
        shown = results(
            job,
            f"""
            try: {call}
            except rm.PeerLostError as error: show(said=str(error))
            """,
        )[0]
    assert shown["said"] == "the sidecar sent an answer that is too short: it must come from the same release"


def test_a_refused_request_says_why(make_job, results):
    with make_job() as job:
        job.answers[34] = lambda client, payload: client.send(REFUSED, struct.pack("<I", 34) + b"no space left for slots of 4 KiB")
        shown = results(
            job,
            """
            try: checkpoint.save(1, {"x": np.ones(2)})
            except rm.RingmasterError as error: show(said=str(error))
            """,
        )[0]
    assert shown["said"] == "the sidecar refuses: no space left for slots of 4 KiB"


def test_it_can_be_shut_down_and_started_again(make_job, results):
    with make_job(size=2) as job:
        shown = results(
            job,
            """
            first = rm.allreduce(np.ones(1), op=rm.Sum).item()
            rm.barrier()
            rm.shutdown()
            try: rm.size()
            except ValueError as error: said = str(error)
            time.sleep(0.3)
            rm.init()
            time.sleep(0.3)
            show(first=first, said=said, second=rm.allreduce(np.ones(1), op=rm.Sum).item())
            """,
        )
    assert shown == [{"first": 2.0, "said": "Ringmaster has not been initialized; use ringmaster.init().", "second": 2.0}] * 2


def test_alone_everything_works(results):
    shown = results(
        None,
        """
        show(rank=rank, size=size, sum=rm.allreduce(np.float32([2]), op=rm.Sum, prescale_factor=3.0).item(),
             rows=rm.allgather(np.ones((2, 3))).tolist(), root=rm.broadcast(np.ones(2), 0).tolist(),
             objects=rm.allgather_object("x"), saved=checkpoint.save(3, {"x": np.ones(2)}), waited=checkpoint.wait(),
             restored=checkpoint.restore(), group=[a.tolist() for a in rm.grouped_allreduce([np.ones(1)])])
        rm.report(step=1); rm.progress(); rm.barrier()
        """,
    )[0]
    assert shown == {
        "rank": 0,
        "size": 1,
        "sum": 6.0,
        "rows": [[1.0] * 3] * 2,
        "root": [1.0, 1.0],
        "objects": ["x"],
        "saved": False,
        "waited": None,
        "restored": None,
        "group": [[1.0]],
    }


def test_arguments_that_cannot_be_right_are_refused_in_words(results):
    shown = results(
        None,
        """
        said = []
        for call in (lambda: rm.allreduce(np.int32([1]), op=rm.Adasum), lambda: rm.allreduce(np.array([True]), op=rm.Sum),
                     lambda: rm.allreduce(np.int16([1]), op=rm.Sum), lambda: rm.allreduce(np.complex64([1])),
                     lambda: rm.allreduce(np.ones(1), op=rm.Sum, average=True), lambda: rm.allreduce(np.ones(1), op=6),
                     lambda: rm.broadcast(np.ones(1), 4), lambda: rm.allgather(np.float32(1)), lambda: rm.allreduce(np.ones(1), name="a" * 3 + "\\0b")):
            try: call(); said.append(None)
            except (rm.RingmasterError, ValueError) as error: said.append(str(error))
        show(said=said)
        """,
    )[0]["said"]
    for text, words in zip(
        said := shown,
        [
            "adasum is for floating types",
            "bool can be reduced by min (and) and max (or) only",
            "int16 can be gathered, broadcast and exchanged, but not reduced",
            "dtype complex64 is not supported",
            "supersedes average",
            "op=6 is not supported",
            "root 4 is not a rank of this world of 1",
            "needs an array of at least one dimension",
        ],
    ):
        assert words in text, said


def test_the_library_needs_nothing_newer_than_glibc_2_28(client_library):
    symbols = subprocess.run(["objdump", "-T", str(client_library)], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    assert versions and max(versions) <= (2, 28)
    needed = subprocess.run(["objdump", "-p", str(client_library)], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"NEEDED\s+(\S+)", needed)) <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
    exported = {line.split()[-1] for line in symbols.splitlines() if " g " in line and ".text" in line}
    assert exported and all(name.startswith("rm_") for name in exported)


def test_every_function_of_the_header_has_its_signature_in_the_binding(client_library):
    header = (ROOT / "client/c/include/ringmaster.h").read_text()
    declared = set(re.findall(r"RM_API [^;(]*?\b(rm_\w+)\(", header))
    sys.path.insert(0, str(ROOT / "client/python"))
    try:
        from ringmaster import _core
    finally:
        sys.path.pop(0)
    assert declared == set(_core._SIGNATURES)


def test_the_library_is_looked_for_in_a_pod_too():
    """There the package stands three levels deep, and what is above has an end."""
    code = """
        import pathlib, sys
        from ringmaster import _core
        _core.__file__ = sys.argv[1]
        print(*_core._candidates(), sep="\\n")
        """
    package = ROOT / "client" / "python"
    environment = {"PYTHONPATH": str(package), "RINGMASTER_LIBRARY_DIR": "/ringmaster/lib", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", textwrap.dedent(code), "/ringmaster/python/ringmaster/_core.py"]
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:3] == ["/ringmaster/lib", "/ringmaster/python/ringmaster", "/ringmaster/lib"]
