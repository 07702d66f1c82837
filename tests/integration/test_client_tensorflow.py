"""The TensorFlow side of the client on two ranks. Importing TensorFlow takes seconds, so each test does much."""

import json

import pytest

from client_world import make_job, results, start  # noqa: F401 (fixtures)
from conftest import PATIENCE_S, wait_until

TENSORFLOW = """
import json, os, sys, time
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
import ringmaster.tensorflow as rm
rm.init()
rank, size = rm.rank(), rm.size()
def show(**values):
    print(json.dumps(values), flush=True)
"""

KERAS = (
    TENSORFLOW.replace("import ringmaster.tensorflow as rm", "import keras\nimport ringmaster.keras as rm")
    + """
from ringmaster import checkpoint
def make(seed, optimizer=None):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    model.compile(optimizer=rm.DistributedOptimizer(optimizer or keras.optimizers.Adam(1e-2)), loss="mse")
    return model
x = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
y = (x.sum(axis=1, keepdims=True) + 1).astype(np.float32)
mine = slice(rank, None, size)
"""
)


def test_operations_in_eager_mode_and_in_graphs(make_job, results):
    with make_job(size=2) as job:
        shown = results(
            job,
            """
            x = tf.constant([[1.0, 2.0], [3.0, 4.0]]) * (rank + 1)
            shown = {}

            @tf.function
            def everything(x):
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    mean = rm.allreduce(x, name="mean")
                    total = rm.allreduce(x, op=rm.Sum, prescale_factor=2.0)
                    first, second = rm.grouped_allreduce([x, x[0] * 10.0], op=rm.Sum)
                    rows = rm.allgather(x[: rank + 1])
                    root = rm.broadcast(x, 1)
                    loss = tf.reduce_sum(mean) + 2.0 * tf.reduce_sum(total) + tf.reduce_sum(rows) * (rank + 1.0) + tf.reduce_sum(root * x)
                shapes = [t.shape.as_list() for t in (mean, total, first, second, rows, root)]
                assert shapes == [[2, 2], [2, 2], [2, 2], [2], [None, 2], [2, 2]], shapes
                return mean, total, first, second, rows, root, tape.gradient(loss, x)

            for _ in range(50):  # a done callback that is used after its time shows itself sooner or later
                out = everything(x)
            for name, tensor in zip(("mean", "total", "first", "second", "rows", "root", "gradient"), out):
                shown[name] = tensor.numpy().tolist()
            eager = rm.allreduce(x, op=rm.Max)
            half = rm.allreduce(tf.constant([1.5], tf.float16), op=rm.Sum)
            odd = rm.broadcast(tf.constant([rank, 7], tf.uint32), 1)
            flags = rm.allgather(tf.constant([rank == 0]))
            light = rm.allreduce(tf.constant([1.0, 2.0]), compression=rm.Compression.fp16)
            slices = rm.allreduce(tf.IndexedSlices(tf.constant([[2.0 + rank]]), tf.constant([rank]), tf.constant([3, 1])))
            shown.update(eager=eager.numpy().tolist(), half=half.numpy().tolist(), odd=odd.numpy().tolist(), flags=flags.numpy().tolist(),
                         light=light.numpy().tolist(), light_dtype=light.dtype.name,
                         slices=tf.convert_to_tensor(slices).numpy().tolist())
            variables = [tf.Variable([1.0 * rank, 2.0]), tf.Variable([[5]], dtype=tf.int64), tf.Variable(rank == 1),
                         tf.Variable([3.0]), tf.Variable(rank, dtype=tf.uint32)]
            rm.broadcast_variables(variables, root_rank=1)
            shown["variables"] = [v.numpy().tolist() for v in variables]

            said = []
            for call in (lambda: rm.allreduce(tf.zeros(2 + rank), name="bad"), lambda: rm.allreduce(tf.constant([1]), op=rm.Adasum),
                         lambda: rm.allgather(tf.constant(1.0)), lambda: rm.broadcast(tf.zeros(1), 9)):
                try: call(); said.append("")
                except (tf.errors.InvalidArgumentError, tf.errors.FailedPreconditionError) as error: said.append(f"{type(error).__name__} {error.message}")
            shown["said"] = said
            show(**shown)
            """,
            prelude=TENSORFLOW,
            timeout_s=280,
        )
        assert "allreduce.mean" in {name for _, name in job.names}
    for rank, row in enumerate(shown):
        assert row["mean"] == [[1.5, 3.0], [4.5, 6.0]]
        assert row["total"] == [[6.0, 12.0], [18.0, 24.0]]
        assert row["first"] == [[3.0, 6.0], [9.0, 12.0]] and row["second"] == [30.0, 60.0]
        assert row["rows"] == [[1.0, 2.0], [2.0, 4.0], [6.0, 8.0]]
        assert row["root"] == [[2.0, 4.0], [6.0, 8.0]]
        # d/dx of: the mean (1), the prescaled sum (2 * 2 ranks * prescale 2 = 8), the rows that are mine (the average of both losses'
        # 1 and 2), root * x (the average again, at the root).
        gathered = [[1.5, 1.5], [1.5, 1.5] if rank == 1 else [0.0, 0.0]]
        own = [[2.0, 4.0], [6.0, 8.0]]
        back = [[1.5, 3.0], [4.5, 6.0]] if rank == 1 else [[0.0, 0.0], [0.0, 0.0]]
        expected = [[1.0 + 8.0 + g + o + b for g, o, b in zip(*rows)] for rows in zip(gathered, own, back)]
        assert row["gradient"] == expected, (rank, row["gradient"], expected)
        assert row["eager"] == [[2.0, 4.0], [6.0, 8.0]] and row["half"] == [3.0] and row["odd"] == [1, 7]
        assert row["flags"] == [True, False] and row["light"] == [1.0, 2.0] and row["light_dtype"] == "float32"
        assert row["slices"] == [[1.0], [1.5], [0.0]]
        assert row["variables"] == [[1.0, 2.0], [[5]], True, [3.0], 1]
        for said, words in zip(
            row["said"],
            ("rank 0 sent 2 elements, rank 1 sent 3", "adasum is for floating types", "at least", "root 9 is not a rank of this world of 2"),
        ):
            assert words in said, row["said"]


def test_ranks_that_execute_in_another_order_do_not_block_each_other(make_job, results):
    """One thread for operations, one hundred of them at once, in opposite orders: a kernel that held its thread would never end."""
    with make_job(size=2) as job:
        shown = results(
            job,
            """
            with tf.Graph().as_default(), tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=1)) as session:
                from ringmaster.tensorflow import ops
                order = range(100) if rank == 0 else reversed(range(100))
                sums = {i: ops.dense_allreduce(tf.fill([i + 1], float(i)), rm.Sum, 1.0, 1.0, f"t{i}") for i in order}
                values = session.run([sums[i] for i in range(100)])
            show(ok=all(v.tolist() == [2.0 * i] * (i + 1) for i, v in enumerate(values)))
            """,
            prelude=TENSORFLOW,
            timeout_s=280,
        )
    assert shown == [{"ok": True}] * 2


def test_optimizers_of_every_kind_apply_the_gradients_of_all_ranks(make_job, results):
    with make_job(size=2) as job:
        shown = results(
            job,
            """
            import keras, tf_keras
            shown = {}
            gradient = tf.constant([2.0, 4.0]) * (1 + rank)  # the mean is 3, 6

            weight = keras.Variable([0.0, 0.0])
            optimizer = rm.DistributedOptimizer(keras.optimizers.SGD(1.0, clipvalue=5.0))
            optimizer.apply([gradient], [weight])
            optimizer.apply_gradients([(gradient, weight)])
            shown["keras"] = weight.numpy().tolist()
            loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
            shown["loaded"] = [type(loaded) is keras.optimizers.SGD, loaded.clipvalue]

            for name, make in (("tf_keras", tf_keras.optimizers.SGD), ("legacy", tf_keras.optimizers.legacy.SGD)):
                weight = tf.Variable([0.0, 0.0])
                rm.DistributedOptimizer(make(1.0)).apply_gradients([(gradient, weight), (None, tf.Variable(1.0))][:1])
                shown[name] = weight.numpy().tolist()

            with tf.Graph().as_default(), tf.compat.v1.Session() as session:
                weight = tf.compat.v1.get_variable("w", initializer=[0.0, 0.0], use_resource=True)
                optimizer = rm.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(1.0))
                step = optimizer.minimize(tf.reduce_sum(weight * (1.0 + rank)))
                session.run(tf.compat.v1.global_variables_initializer())
                session.run(step)
                shown["v1"] = session.run(weight).tolist()

            table = tf.Variable(tf.zeros([4, 1]))
            for sparse_as_dense in (False, True):
                with tf.GradientTape() as plain:
                    loss = tf.reduce_sum(tf.gather(table, [rank, 3])) * 2.0
                tape = rm.DistributedGradientTape(plain, sparse_as_dense=sparse_as_dense)
                found = tape.gradient(loss, [table])[0]
                shown[f"sparse_{sparse_as_dense}"] = tf.convert_to_tensor(found).numpy().reshape(-1).tolist()
            with rm.DistributedGradientTape(tf.GradientTape(), gradient_predivide_factor=2.0, num_groups=2) as tape:
                a, b, c = tf.Variable(1.0 + rank), tf.Variable(1.0), tf.Variable(2.0)
                loss = a * a * b
            shown["tape"] = [None if g is None else g.numpy().item() for g in tape.gradient(loss, [a, b, c])]

            said = []
            for call in (lambda: rm.DistributedOptimizer(rm.DistributedOptimizer(keras.optimizers.SGD())), lambda: rm.DistributedOptimizer(object()),
                         lambda: rm.DistributedOptimizer(keras.optimizers.SGD(), backward_passes_per_step=0),
                         lambda: rm.DistributedOptimizer(keras.optimizers.SGD(), op=rm.Sum, gradient_predivide_factor=2.0)):
                try: call()
                except (ValueError, NotImplementedError) as error: said.append(str(error))
            show(**shown, said=said)
            """,
            prelude=TENSORFLOW,
            timeout_s=280,
        )
    for row in shown:
        assert row["keras"] == [-6.0, -10.0]  # clipped after the reduction: 3 + 3, 5 + 5
        assert row["loaded"] == [True, 5.0]  # what is saved loads without us
        assert row["tf_keras"] == row["legacy"] == [-3.0, -6.0] and row["v1"] == [-1.5, -1.5]
        assert row["sparse_False"] == row["sparse_True"] == [1.0, 1.0, 0.0, 2.0]
        assert row["tape"] == [3.0, 2.5, None]
        assert len(row["said"]) == 4 and "distributed already" in row["said"][0] and "backward_passes_per_step=0" in row["said"][2]


def test_fit_reports_averages_saves_and_resumes_at_the_exact_step(make_job, results):
    """Ten steps in one go, and six, a death, and the rest: the weights must be the same to the bit."""
    train = """
    saver = rm.callbacks.CheckpointCallback(every_steps=3, extra=lambda: {"rank": rank})
    model = make(seed=rank)  # other weights on each rank: the broadcast makes them equal
    begin = saver.restore(model)
    calls = [rm.callbacks.BroadcastGlobalVariablesCallback(0), rm.callbacks.MetricAverageCallback(),
             rm.callbacks.ProgressCallback(total_steps=12), saver]
    last, losses = int(os.environ["LAST_STEP"]), []
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == last:
                self.model.stop_training = True
    for epoch in range(begin.epoch, 3):  # 4 steps an epoch
        skip = begin.step_in_epoch if epoch == begin.epoch else 0
        if int(model.optimizer.iterations) >= last or skip == 4:
            continue
        part = slice(rank + 2 * 8 * skip, None, 2)
        history = model.fit(x[part], y[part], batch_size=8, shuffle=False, initial_epoch=epoch, epochs=epoch + 1, callbacks=calls + [Stop()], verbose=0)
        losses += history.history["loss"]
    show(hash=rm.weights_hash(model), step=int(model.optimizer.iterations), begin=list(begin), losses=losses, extra=saver.restored_extra,
         committed=checkpoint.wait(), resplit=resplit_position([{"epoch": 1, "step_in_epoch": 3, "user": {"rank": r}} for r in range(5)]))
    """
    train = "    from ringmaster.tensorflow._training import resplit_position\n" + train.lstrip("\n")
    with make_job(size=2) as job:
        whole = results(job, train, prelude=KERAS, timeout_s=280, LAST_STEP="12")
        reports = [json.loads(text) for text in job.clients[0].reports]
        assert [step for step, _ in job.clients[0].staged] == [3, 6, 9, 12]
    merged = {}
    for report in reports:
        merged.update({k: v for k, v in report.items() if k != "metrics"}, **report.get("metrics", {}))
    assert merged["step"] == merged["total_steps"] == 12 and merged["epoch"] == 3 and merged["step_ms"] > 0
    assert merged["weights_hash"] == whole[0]["hash"] == whole[1]["hash"]
    assert whole[1]["resplit"] == {"epoch": 1, "step_in_epoch": 7, "user": {}}, "15 batches of five ranks are seven steps of two"
    assert whole[0]["losses"] == whole[1]["losses"] and len(whole[0]["losses"]) == 3 and whole[0]["begin"] == [0, 0, 0]

    with make_job(size=2) as job:
        cut = results(job, train, prelude=KERAS, timeout_s=280, LAST_STEP="7")
        images = {rank: client.staged[-1][1] for rank, client in job.clients.items()}
        assert [client.staged[-1][0] for client in job.clients.values()] == [6, 6] and cut[0]["step"] == 7
    with make_job(size=2) as job:
        job.resume_step, job.restore_images = 6, images
        rest = results(job, train, prelude=KERAS, timeout_s=280, LAST_STEP="12")
    assert [row["hash"] for row in rest] == [row["hash"] for row in whole]
    assert rest[0]["begin"] == [6, 1, 2] and rest[0]["step"] == 12
    assert [row["extra"] for row in rest] == [{"rank": 0}, {"rank": 1}]


def test_callbacks_agree_on_a_save_that_one_rank_was_asked_for(make_job, start):
    with make_job(size=2) as job:
        processes = start(
            job,
            """
            saver = rm.callbacks.CheckpointCallback(every_steps=0, agree_every=5)
            warm = rm.callbacks.LearningRateWarmupCallback(0.08, warmup_epochs=2, steps_per_epoch=4)
            seen = []
            class Watch(keras.callbacks.Callback):
                def on_train_batch_begin(self, batch, logs=None):
                    seen.append(round(float(self.model.optimizer.learning_rate), 6))
                    if len(seen) == 3:
                        show(at=3); sys.stdin.readline()
            model = make(seed=1, optimizer=keras.optimizers.SGD(0.08))
            model.fit(x[mine], y[mine], batch_size=8, shuffle=False, epochs=4, callbacks=[warm, Watch(), saver], verbose=0)
            show(rates=seen)
            """,
            prelude=KERAS,
        )
        for process in processes:
            assert json.loads(process.stdout.readline()) == {"at": 3}
        job.run_in_thread(lambda: job.clients[1].send(54))  # LOCAL_SAVE, on one rank alone
        wait_until(lambda: not job._commands, what="the word to be sent")
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        ends = [process.communicate(timeout=PATIENCE_S) for process in processes]
        assert [process.returncode for process in processes] == [0, 0], ends
        rates = json.loads(ends[0][0].splitlines()[-1])["rates"]
        saved = [[step for step, _ in client.staged] for client in job.clients.values()]
        assert saved[0] == saved[1] and saved[0] in ([5], [10], [15]), f"{saved}: once, at a step where they agree, on both"
    assert rates[:8] == [0.045, 0.05, 0.055, 0.06, 0.065, 0.07, 0.075, 0.08] and rates[8:] == [0.08] * 8


def test_a_lost_peer_ends_fit_with_an_error(make_job, start):
    with make_job(size=2) as job:
        seen = []

        def lose(client, request):
            seen.append(request["name"])
            if len(seen) == 20:
                job.lose("rank 1 (worker-1) is gone")
                return True
            return False

        job.on_request = lose
        processes = start(
            job,
            """
            model = make(seed=1)
            try:
                model.fit(x[mine], y[mine], batch_size=1, epochs=50, verbose=0, callbacks=[rm.callbacks.ProgressCallback()])
            except tf.errors.UnknownError as error:
                show(said=error.message)
                raise
            """,
            prelude=KERAS,
            ranks=2,
        )
        wait_until(lambda: len(seen) >= 20, timeout_s=200, what="the twentieth request")
        job.drop(1)
        job.drop(0)
        for process in processes:
            out, err = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 1, err
            said = json.loads(out.splitlines()[-1])["said"]
            assert "rank 1 (worker-1) is gone" in said or "the sidecar closed the connection" in said


def test_legacy_keras_has_the_same_callbacks(make_job, results):
    with make_job(size=2) as job:
        shown = results(
            job,
            """
            import ringmaster.tensorflow.keras as rmk
            assert tf.keras.layers.Dense.__module__.startswith("tf_keras")
            tf.keras.utils.set_random_seed(rank)
            model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
            model.compile(optimizer=rm.DistributedOptimizer(tf.keras.optimizers.Adam(0.1)), loss="mse")
            saver = rmk.callbacks.CheckpointCallback(every_steps=2)
            x = np.random.default_rng(rank).normal(size=(32, 4)).astype(np.float32)
            model.fit(x, x.sum(axis=1), batch_size=8, epochs=1, verbose=0, callbacks=[
                rmk.callbacks.BroadcastGlobalVariablesCallback(0), rmk.callbacks.MetricAverageCallback(), rmk.callbacks.ProgressCallback(),
                rmk.callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.5), saver])
            show(hash=rmk.weights_hash(model), rate=float(model.optimizer.learning_rate), numpy=type(rmk.allreduce(np.ones(2))).__name__)
            """,
            prelude=TENSORFLOW,
            timeout_s=280,
            TF_USE_LEGACY_KERAS="1",
        )
        assert [[step for step, _ in client.staged] for client in job.clients.values()] == [[2, 4], [2, 4]]
    assert shown[0] == shown[1] and shown[0]["rate"] == pytest.approx(0.05) and shown[0]["numpy"] == "ndarray"
