"""What ringmaster.tensorflow and ringmaster.keras promise, as checks that every rank of a job runs in the same order; see checks.py.
TensorFlow is imported where the checks run alone: who asks for their names need not wait for it.
"""

import os
import tempfile

from harness import ALL, FLOATS, REDUCIBLE, SETS, Checks, raises

if __name__ == "__main__":
    import keras
    import numpy as np
    import ringmaster.keras as rk
    import ringmaster.tensorflow as rm
    import tensorflow as tf
    from ringmaster import ProcessSet
    from ringmaster.tensorflow import elastic

CHECKS = Checks()
check = CHECKS.check


def values(rank, shape, dtype="float32"):
    """Small whole numbers that differ among ranks and places: exact in every type, also when they are added up."""
    numbers = ((np.arange(int(np.prod(shape))) * 7 + rank * 3) % 5 + 1).reshape(shape)
    return tf.constant(numbers % 2 == 0) if dtype == "bool" else tf.cast(tf.constant(numbers), dtype)


def everybody(shape, ranks=None):
    return np.stack([values(rank, shape, "float64").numpy() for rank in (range(rm.size()) if ranks is None else ranks)])


def plain(tensor):
    return tf.cast(tensor, tf.float64).numpy()


def same(got, want, dtype=None):
    want = np.asarray(want, np.float64)
    assert tuple(got.shape) == want.shape, (got.shape, want.shape)
    assert dtype is None or got.dtype.name == dtype, (got.dtype, dtype)
    assert np.array_equal(plain(got), want), (got, want)


def near(got, want, tolerance=1e-5):
    assert np.allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=tolerance, atol=tolerance), (got, want)


def rows_of(rank, count, ranks):
    """Where the rows of a rank begin and end in a reduce-scatter."""
    each, more = divmod(count, ranks)
    begin = rank * each + min(rank, more)
    return slice(begin, begin + each + (rank < more))


# ---- collectives: every dtype, eagerly and in a graph ------------------------------------------------------------------


@check(dtype=REDUCIBLE)
def allreduce(dtype):
    mine, every = values(rm.rank(), (3, 2), dtype), everybody((3, 2))
    total = every.sum(0)
    same(rm.allreduce(mine, op=rm.Sum, name=f"sum.{dtype}"), total, dtype)
    mean = total / rm.size()
    same(rm.allreduce(mine), mean if dtype in FLOATS and rm.size() in (2, 4) else np.trunc(mean), dtype)
    same(rm.allreduce(mine, op=rm.Min), every.min(0), dtype)
    same(rm.allreduce(mine, op=rm.Max), every.max(0), dtype)
    if dtype != "int8":
        same(rm.allreduce(tf.clip_by_value(mine, tf.cast(1, dtype), tf.cast(2, dtype)), op=rm.Product), np.clip(every, 1, 2).prod(0), dtype)
    same(rm.allreduce(mine, average=False), total, dtype)

    @tf.function
    def graph(x):
        y = rm.allreduce(x, op=rm.Sum)
        assert y.shape == x.shape and y.dtype == x.dtype
        return y, rm.grouped_allreduce([x, x[0]], op=rm.Sum)

    one, (first, second) = graph(mine)
    same(one, total, dtype)
    same(first, total, dtype)
    same(second, total[0], dtype)


@check(dtype=ALL)
def allgather(dtype):
    mine = values(rm.rank(), (rm.rank() + 1, 3), dtype)
    want = np.concatenate([plain(values(rank, (rank + 1, 3), dtype)) for rank in range(rm.size())])
    same(rm.allgather(mine, name=f"rows.{dtype}"), want, dtype)
    nothing = rm.allgather(mine[: 0 if rm.rank() else 1])
    same(nothing, plain(values(0, (1, 3), dtype)), dtype)

    @tf.function
    def graph(x):
        y = rm.allgather(x)
        assert y.shape.as_list() == [None, 3]
        return y, rm.grouped_allgather([x, tf.fill([2], rm.rank())])

    one, (first, ranks) = graph(mine)
    same(one, want, dtype)
    same(first, want, dtype)
    same(ranks, np.repeat(np.arange(rm.size()), 2), "int32")


@check(dtype=ALL + ("uint32", "complex64"))
def broadcast(dtype):
    root = rm.size() - 1
    kind = "float32" if dtype == "complex64" else dtype
    mine = tf.cast(values(rm.rank(), (2, 2), kind), dtype)
    want = tf.cast(values(root, (2, 2), kind), dtype)
    assert bool(tf.reduce_all(rm.broadcast(mine, root, name=f"root.{dtype}") == want))
    assert bool(tf.reduce_all(tf.function(lambda x: rm.broadcast(x, root))(mine) == want))
    variables = [tf.Variable(mine), tf.Variable(mine[0])]
    rm.broadcast_(variables, root)
    assert bool(tf.reduce_all(variables[0] == want)) and bool(tf.reduce_all(variables[1] == want[0]))


@check(dtype=REDUCIBLE)
def reducescatter(dtype):
    count = 2 * rm.size() + 1
    mine, total = values(rm.rank(), (count, 2), dtype), everybody((count, 2)).sum(0)
    part = rows_of(rm.rank(), count, rm.size())
    same(rm.reducescatter(mine, op=rm.Sum, name=f"scatter.{dtype}"), total[part], dtype)
    if dtype in FLOATS:
        same(rm.reducescatter(mine), total[part] / rm.size(), dtype)
    one, two = tf.function(lambda x: rm.grouped_reducescatter([x, x[:, 0]], op=rm.Sum))(mine)
    same(one, total[part], dtype)
    same(two, total[part][:, 0], dtype)


@check(dtype=ALL)
def alltoall(dtype):
    size, rank = rm.size(), rm.rank()
    splits = [i + 1 for i in range(size)]  # rank i gets i + 1 rows of everybody
    mine = values(rank, (sum(splits), 2), dtype)
    begin = sum(splits[:rank])
    want = np.concatenate([plain(values(r, (sum(splits), 2), dtype))[begin : begin + rank + 1] for r in range(size)])
    got, received = rm.alltoall(mine, splits=splits, name=f"all.{dtype}")
    same(got, want, dtype)
    same(received, [rank + 1] * size, "int32")
    even = values(rank, (size, 2), dtype)
    same(tf.function(lambda x: rm.alltoall(x))(even), np.stack([plain(values(r, (size, 2), dtype))[rank] for r in range(size)]), dtype)


@check()
def bools_and_scales():
    same(rm.allreduce(tf.constant([rm.rank() == 0, True]), op=rm.Min), [0, 1], "bool")
    ones = tf.ones([2])
    same(rm.allreduce(ones, op=rm.Sum, prescale_factor=2.0, postscale_factor=3.0), [6.0 * rm.size()] * 2)
    same(rm.reducescatter(tf.ones([rm.size()]), op=rm.Sum, prescale_factor=0.5, postscale_factor=4.0), [2.0 * rm.size()])
    same(rm.allreduce(tf.fill([2], 3.0 if rm.rank() == 0 else 3.0), op=rm.Adasum), [3.0, 3.0])
    assert len(rm.grouped_allreduce([])) == len(rm.grouped_allgather([])) == len(rm.grouped_reducescatter([])) == 0


@check()
def compression_and_slices():
    for compression in (rm.Compression.none, rm.Compression.fp16):
        same(rm.allreduce(tf.ones([3]), op=rm.Sum, compression=compression), [rm.size()] * 3, "float32")
        same(rm.grouped_allreduce([tf.ones([3])], op=rm.Sum, compression=compression)[0], [rm.size()] * 3, "float32")
        same(rm.reducescatter(tf.ones([rm.size()]), op=rm.Sum, compression=compression), [rm.size()], "float32")
    mine = tf.IndexedSlices(tf.fill([rm.rank() + 1, 2], 1.0), tf.range(rm.rank() + 1), tf.constant([rm.size(), 2]))
    dense = tf.convert_to_tensor(rm.allreduce(mine, op=rm.Sum))
    same(dense, [[rm.size() - row] * 2 for row in range(rm.size())])
    near(tf.convert_to_tensor(rm.allreduce(mine)), plain(dense) / rm.size())
    raises(NotImplementedError, ["scale"], rm.allreduce, mine, prescale_factor=2.0)
    raises(NotImplementedError, ["Max"], rm.allreduce, mine, op=rm.Max)


@check()
def numbers_at_run_time():
    ask = tf.function(lambda: (rm.size_op(), rm.rank_op(), rm.local_size_op(), rm.local_rank_op(), rm.process_set_included_op()))
    assert [int(number) for number in ask()] == [rm.size(), rm.rank(), rm.local_size(), rm.local_rank(), 1]
    own = SETS[0] if rm.rank() == 0 else SETS[1]
    assert int(rm.size_op(own.process_set_id)) == own.size()
    assert int(rm.process_set_included_op(SETS[0].process_set_id)) == (rm.rank() == 0)
    raises(tf.errors.OpError, [], rm.size_op, 99)


@check()
def process_sets():
    if rm.rank() == 0:
        same(rm.allreduce(tf.ones([2]), op=rm.Sum, process_set=SETS[0]), [1.0, 1.0])
        return
    rest, others = SETS[1], range(1, rm.size())
    options = {"process_set": rest}
    same(rm.allreduce(values(rm.rank(), (3,)), op=rm.Sum, **options), everybody((3,), others).sum(0))
    same(rm.grouped_allreduce([values(rm.rank(), (3,))], op=rm.Sum, **options)[0], everybody((3,), others).sum(0))
    same(rm.allgather(tf.constant([rm.rank()]), **options), list(others))
    same(rm.grouped_allgather([tf.constant([rm.rank()])], **options)[0], list(others))
    same(rm.broadcast(tf.constant(rm.rank()), rm.size() - 1, **options), rm.size() - 1)  # a rank of the job
    same(rm.reducescatter(tf.ones([rest.size()]), op=rm.Sum, **options), [rest.size()])
    same(rm.alltoall(tf.fill([rest.size()], rm.rank()), **options), list(others))
    assert rm.broadcast_object({"of": rm.rank()}, 1, **options) == {"of": 1}
    assert rm.allgather_object(rm.rank(), **options) == list(others)
    with tf.GradientTape() as tape:
        x = tf.Variable(float(rm.rank()))
        loss = x * x
    mean = np.mean([2.0 * rank for rank in others])
    near(rm.DistributedGradientTape(tape, **options).gradient(loss, x), mean)
    raises(tf.errors.InvalidArgumentError, [], rm.allreduce, tf.ones([1]), process_set=SETS[0])


# ---- errors ------------------------------------------------------------------------------------------------------------


@check()
def disagreement():
    rank, wrong = rm.rank(), tf.errors.FailedPreconditionError
    raises(wrong, ["bad.shape"], rm.allreduce, tf.zeros([2 + rank]), name="bad.shape")
    raises(wrong, ["bad.dtype"], rm.allreduce, tf.zeros([2], tf.float32 if rank else tf.float64), name="bad.dtype")
    raises(wrong, ["bad.op"], rm.allreduce, tf.zeros([2]), op=rm.Min if rank else rm.Max, name="bad.op")
    raises(wrong, ["bad.rows"], rm.allgather, tf.zeros([1, 2 + rank]), name="bad.rows")
    raises(wrong, ["bad.root"], rm.broadcast, tf.zeros([2]), min(rank, 1), name="bad.root")
    raises(wrong, ["bad.rest"], rm.alltoall, tf.zeros([rm.size(), 1 + rank]), name="bad.rest")
    raises(wrong, ["bad.scatter"], rm.reducescatter, tf.zeros([3 + rank, 2]), name="bad.scatter")


@check()
def what_cannot_be():
    wrong = tf.errors.InvalidArgumentError
    raises(wrong, ["dimension"], rm.allgather, tf.constant(1.0))
    raises(wrong, ["dimension"], rm.reducescatter, tf.constant(1.0))
    raises(wrong, ["root"], rm.broadcast, tf.zeros([1]), rm.size() + 5)
    raises(wrong, ["splits"], rm.alltoall, tf.zeros([2]), splits=[1] * (rm.size() + 1))
    raises(wrong, [], rm.alltoall, tf.zeros([2]), splits=[7] * rm.size())
    raises(wrong, [], rm.alltoall, tf.zeros([2]), splits=[-1] + [1] * (rm.size() - 1))
    raises(wrong, [], rm.allreduce, tf.constant([1]), op=rm.Adasum)
    raises(ValueError, ["average"], rm.allreduce, tf.zeros([1]), average=True, op=rm.Sum)
    raises(ValueError, ["op="], rm.allreduce, tf.zeros([1]), op=17)
    raises(ValueError, ["not registered"], rm.allreduce, tf.zeros([1]), process_set=ProcessSet([0]))
    raises((TypeError, ValueError, wrong), [], rm.allreduce, tf.constant(["text"]))
    same(rm.allreduce(tf.ones([1]), op=rm.Sum), [rm.size()])  # nothing of it is left over


# ---- gradients ---------------------------------------------------------------------------------------------------------


def gradient_of(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = function(x)
    return tape.gradient(loss, x)


@check(graph=(False, True))
def gradients(graph):
    """What Horovod's users know: a sum gives back the sum, everything else the average of what the ranks ask for."""
    size, rank = rm.size(), rm.rank()
    mine = tf.ones([size, 2]) * (rank + 1.0)
    weight = rank + 1.0  # every rank's loss weighs another
    total, mean = size * (size + 1) / 2, (size + 1) / 2
    cases = {
        "sum": (lambda x: rm.allreduce(x, op=rm.Sum), total),
        "average": (lambda x: rm.allreduce(x), mean),
        "scaled": (lambda x: rm.allreduce(x, op=rm.Sum, prescale_factor=2.0), 2 * total),
        "group": (lambda x: rm.grouped_allreduce([x, 2.0 * x], op=rm.Sum)[1], 2 * total),
        "allgather": (lambda x: rm.allgather(x), mean),
        "grouped_allgather": (lambda x: rm.grouped_allgather([x, tf.constant([1])])[0], mean),
        "broadcast": (lambda x: rm.broadcast(x, 1), mean if rank == 1 else 0.0),
    }
    for name, (function, factor) in cases.items():
        whole = lambda x, function=function: tf.reduce_sum(function(x)) * weight  # noqa: E731
        compute = lambda x, whole=whole: gradient_of(whole, x)  # noqa: E731
        near((tf.function(compute) if graph else compute)(mine), np.full((size, 2), factor)), name
    scattered = gradient_of(lambda x: tf.reduce_sum(rm.reducescatter(x, op=rm.Sum)) * weight, mine)
    near(scattered, np.repeat([[size * (r + 1.0)] for r in range(size)], 2, axis=1))
    several = gradient_of(lambda x: tf.reduce_sum(rm.grouped_reducescatter([x])[0]) * weight, mine)
    near(several, np.repeat([[r + 1.0] for r in range(size)], 2, axis=1))
    exchanged = gradient_of(lambda x: tf.reduce_sum(rm.alltoall(x)) * weight, mine)
    near(exchanged, np.repeat([[r + 1.0] for r in range(size)], 2, axis=1))
    ragged = gradient_of(lambda x: tf.reduce_sum(rm.allgather(x)), tf.ones([rank + 1, 2]))
    near(ragged, np.ones((rank + 1, 2)))
    raises(LookupError, ["no gradient"], gradient_of, lambda x: rm.allreduce(x, op=rm.Max), mine)


@check()
def tapes():
    rank, size = rm.rank(), rm.size()
    mean = (size + 1) / 2
    a, b, table = tf.Variable(1.0 + rank), tf.Variable(1.0), tf.Variable(tf.zeros([size + 1, 1]))

    def of(make, **options):
        with tf.GradientTape(persistent=True) as tape:
            loss = a * b + tf.reduce_sum(tf.gather(table, [rank, size]))
        wrapped = make(tape, **options)
        assert isinstance(wrapped, tf.GradientTape)
        return wrapped, lambda: wrapped.gradient(loss, {"a": a, "b": b, "t": table})

    for options in ({}, {"gradient_predivide_factor": 2.0}, {"num_groups": 2}, {"groups": [[a, b]]}, {"groups": 2}, {"sparse_as_dense": True}):
        _, run = of(rm.DistributedGradientTape, **options)
        found = run()
        near(found["a"], 1.0)
        near(found["b"], mean)
        near(tf.convert_to_tensor(found["t"])[:, 0], [1 / size] * size + [1.0])
    for scale, factor in ((True, 1.0 / size), (False, 1.0)):
        tape, run = of(rm.DistributedGradientTape, scale_local_gradients=scale)
        tape.register_local_source(b)
        near(run()["b"], (1.0 + rank) * factor)
        local, sources, shared, _ = tape.get_local_and_global_gradients([1, 2], [a, b])
        assert (local, shared) == ([2], [1]) and sources[0] is b
    layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones") for _ in range(2)]
    x = tf.fill([1, 1], 1.0 + rank)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layers[0](x) + layers[1](x))
    tape = rm.PartialDistributedGradientTape(tape, local_layers=layers[0])
    one, other = tape.gradient(loss, [layer.trainable_weights[0] for layer in layers])
    near([float(one[0, 0]), float(other[0, 0])], [(1.0 + rank) / size, mean])
    with rm.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = a * b
    assert tape.gradient(loss, [b, tf.Variable(1.0)])[1] is None
    raises(ValueError, ["op != Average"], rm.DistributedGradientTape, tf.GradientTape(), op=rm.Sum, gradient_predivide_factor=2.0)
    raises(ValueError, ["groups"], rm.DistributedGradientTape, tf.GradientTape(), groups=-1)
    raises(ValueError, ["no Keras layer"], rm.PartialDistributedGradientTape, tf.GradientTape(), local_layers=3)


# ---- optimizers --------------------------------------------------------------------------------------------------------


def stepper(optimizer, weight, graph):
    def step(gradient):
        optimizer.apply_gradients([(gradient, weight)])

    return tf.function(step) if graph else step


@check(average=(False, True))
def several_passes(average):
    """Two passes make a step, in eager mode and in a graph; the sum of both, over the average of all ranks."""
    import tf_keras

    mean, factor = (rm.size() + 1) / 2, 0.5 if average else 1.0
    options = {"backward_passes_per_step": 2, "average_aggregated_gradients": average}
    for make in (keras.optimizers.SGD, tf_keras.optimizers.SGD, tf_keras.optimizers.legacy.SGD):
        for graph in (False, True):
            weight = (keras.Variable if make is keras.optimizers.SGD else tf.Variable)(np.zeros(2, np.float32))
            optimizer = rm.DistributedOptimizer(make(1.0), **options)
            step, seen = stepper(optimizer, weight, graph), []
            for turn in range(4):
                step(tf.constant([1.0, turn]) * (rm.rank() + 1.0))
                seen.append(weight.numpy().tolist())
            near(seen, [[0, 0], [-2 * mean * factor, -mean * factor], [-2 * mean * factor, -mean * factor], [-4 * mean * factor, -6 * mean * factor]])
            assert int(optimizer.iterations.numpy()) == 4


@check()
def optimizers_of_keras():
    mean = (rm.size() + 1) / 2
    gradient = tf.ones([2]) * (rm.rank() + 1.0)
    for options, one, other in (
        ({}, mean, mean),
        ({"gradient_predivide_factor": 2.0, "op": rm.Average}, mean, mean),
        ({"op": rm.Sum}, mean * rm.size(), mean * rm.size()),
        ({"compression": rm.Compression.fp16}, mean, mean),
    ):
        first, second = keras.Variable([0.0, 0.0]), keras.Variable([0.0, 0.0])
        rk.DistributedOptimizer(keras.optimizers.SGD(1.0), **options).apply([gradient, gradient], [first, second])
        near([first.numpy()[0], second.numpy()[1]], [-one, -other])
    first, second = keras.Variable([0.0, 0.0]), keras.Variable([0.0, 0.0])
    optimizer = rm.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=[[first], [second]])
    optimizer.register_local_var(second)
    optimizer.apply([gradient, gradient], [first, second])
    near([first.numpy()[0], second.numpy()[0]], [-mean, -(rm.rank() + 1.0) / rm.size()])
    layer = keras.layers.Dense(1, use_bias=False)
    layer.build((None, 1))
    begin = float(layer.kernel.numpy()[0, 0])
    rm.PartialDistributedOptimizer(keras.optimizers.SGD(1.0), local_layers=[layer], scale_local_gradients=False).apply(
        [tf.fill([1, 1], 2.0)], [layer.kernel]
    )
    near(layer.kernel.numpy()[0, 0], begin - 2.0)


@check()
def tf1_sessions():
    """Graphs, sessions, hooks, optimizers of TF1 with several passes a step."""
    v1 = tf.compat.v1
    mean = (rm.size() + 1) / 2
    with tf.Graph().as_default():
        weight = v1.get_variable("w", initializer=tf.fill([2], float(rm.rank())), use_resource=True)
        old = v1.get_variable("old", initializer=tf.fill([2], float(rm.rank())), use_resource=False)
        optimizer = rm.DistributedOptimizer(v1.train.GradientDescentOptimizer(1.0), backward_passes_per_step=2)
        global_step = v1.train.get_or_create_global_step()
        step = optimizer.minimize(tf.reduce_sum(weight) * (rm.rank() + 1.0), global_step=global_step, var_list=[weight])
        hooks = [rm.BroadcastGlobalVariablesHook(1), v1.train.StopAtStepHook(last_step=4)]
        seen = []
        with v1.train.MonitoredTrainingSession(hooks=hooks) as session:
            seen.append(session.run([weight, old]))
            while not session.should_stop():
                session.run(step)
                if not session.should_stop():
                    seen.append(session.run([weight, old]))
    near([pair[1] for pair in seen], [[1.0, 1.0]] * len(seen))
    near([pair[0][0] for pair in seen], [1.0, 1.0, 1.0 - 2 * mean, 1.0 - 2 * mean])
    with tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("w", initializer=float(rm.rank()))
        everything = rm.broadcast_global_variables(1)
        session.run(v1.global_variables_initializer())
        session.run(everything)
        assert session.run(weight) == 1.0
        state = elastic.TensorFlowState(session=session, step=rm.rank())
        session.run(weight.assign(5.0 + rm.rank()))
        state.step = 7
        state.restore()
        assert session.run(weight) == 1.0 and state.step == rm.rank()
        session.run(weight.assign(5.0 + rm.rank()))
        state.sync()
        assert session.run(weight) == 5.0 and state.step == 0
    raises(RuntimeError, ["eager"], rm.broadcast_global_variables, 0)


# ---- Keras -------------------------------------------------------------------------------------------------------------


def model(seed, *layers):
    keras.utils.set_random_seed(seed)
    made = keras.Sequential([keras.Input((4,)), *(layers or [keras.layers.Dense(3)])])
    made.compile(optimizer=rk.DistributedOptimizer(keras.optimizers.Adam(0.01)), loss="mse", metrics=["mae"])
    return made


def data(rows=32):
    x = np.random.default_rng(rm.rank()).normal(size=(rows, 4)).astype(np.float32)
    return x, x[:, :3]


@check()
def values_of_keras():
    ones = np.ones(2, np.float32)
    near(rk.allreduce(ones * (rm.rank() + 1), op=rm.Sum, name="v"), ones * rm.size() * (rm.size() + 1) / 2)
    near(rk.allreduce(tf.constant(2.0), compression=rk.Compression.fp16), 2.0)
    near(rk.allgather([rm.rank()]), range(rm.size()))
    near(rk.broadcast(float(rm.rank()), 1), 1.0)
    near(rk.reducescatter(np.ones(rm.size()), op=rm.Sum), [rm.size()])


@check()
def callbacks_and_loading():
    net = model(rm.rank())
    seen = []
    best = rk.callbacks.BestModelCheckpoint(monitor="loss")
    with tempfile.TemporaryDirectory() as directory:
        best.filepath = os.path.join(directory, "best.keras")
        history = net.fit(*data(), epochs=2, verbose=0, batch_size=8, callbacks=[
            rk.callbacks.BroadcastGlobalVariablesCallback(0), rk.callbacks.MetricAverageCallback(),
            rk.callbacks.LearningRateWarmupCallback(0.01, warmup_epochs=1),
            rk.callbacks.LearningRateScheduleCallback(0.01, lambda epoch: 0.5, start_epoch=1),
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(logs["loss"])), best])
        losses = rm.allgather_object((history.history["loss"], seen, rk.weights_hash(net)))
        assert losses == [losses[0]] * rm.size() and seen == history.history["loss"]
        near(net.optimizer.learning_rate.numpy(), 0.005)
        loaded = rk.load_model(best.filepath)
        assert type(loaded.optimizer).__name__ == "Adam"
        near(loaded.optimizer.iterations.numpy(), net.optimizer.iterations.numpy())
        loaded.fit(*data(), verbose=0, batch_size=8)
        assert len(set(rm.allgather_object(rk.weights_hash(loaded)))) == 1  # it is distributed
    raises(ValueError, ["distributed already"], rk.DistributedOptimizer, loaded.optimizer)


@check()
def elastic_states():
    net = model(rm.rank())
    net.fit(*data(), verbose=0, batch_size=16)
    state = rk.elastic.KerasState(net, batch=0, epoch=rm.rank())
    state.sync()
    first = rk.weights_hash(net)
    assert len(set(rm.allgather_object((first, state.epoch)))) == 1 and state.epoch == 0
    commits = []
    state.register_reset_callbacks([lambda: commits.append("reset")])
    state.on_reset()
    assert commits == ["reset"]

    class Watch(rk.elastic.CommitStateCallback):
        def commit(self):
            commits.append(int(net.optimizer.iterations.numpy()))
            super().commit()

    watch = [rk.elastic.UpdateBatchStateCallback(state), rk.elastic.UpdateEpochStateCallback(state), Watch(state, batches_per_commit=3)]
    net.fit(*data(), epochs=2, verbose=0, batch_size=8, callbacks=watch)
    assert commits[1:] == [5, 6, 8, 10], commits  # two steps before; every third of four and four, and the ends of both epochs
    assert (state.epoch, state.batch) == (2, 0)
    second = rk.weights_hash(net)
    net.fit(*data(), verbose=0, batch_size=8)
    assert rk.weights_hash(net) != second
    state.restore()
    assert rk.weights_hash(net) == second and state.epoch == 2

    def lost(message):
        raise tf.errors.UnknownError(None, None, message)

    train = elastic.run(lambda state, message: lost(message))
    raises(tf.errors.UnknownError, ["theirs"], train, state, "theirs")
    variables = [tf.Variable(float(rm.rank()))]
    eager = elastic.TensorFlowState(variables, step=1)
    eager.sync()
    assert variables[0].numpy() == 0.0
    raises(ValueError, ["variables"], elastic.TensorFlowState)


@check()
def sync_batch_normalization():
    """Batches of other sizes on each rank give what one batch of them all gives, gradients included."""
    rng = np.random.default_rng(3)
    parts = [rng.normal(size=(2 + rank, 3)).astype(np.float32) * (rank + 1) for rank in range(rm.size())]
    sync, alone = rm.SyncBatchNormalization(), keras.layers.BatchNormalization()
    mine, whole = tf.constant(parts[rm.rank()]), tf.constant(np.concatenate(parts))
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([mine, whole])
        one, all_of_it = sync(mine, training=True), alone(whole, training=True)
        loss, whole_loss = tf.reduce_sum(one**3), tf.reduce_sum(all_of_it**3)
    begin = sum(len(part) for part in parts[: rm.rank()])
    near(one, all_of_it[begin : begin + len(mine)], 1e-4)
    near(sync.moving_variance.numpy(), alone.moving_variance.numpy(), 1e-4)
    near(tape.gradient(loss, mine), tape.gradient(whole_loss, whole)[begin : begin + len(mine)], 1e-3)
    net = model(0, rm.SyncBatchNormalization(), keras.layers.Dense(3))
    net.fit(*data(), verbose=0, batch_size=8, callbacks=[rk.callbacks.BroadcastGlobalVariablesCallback(0)])
    assert len(set(rm.allgather_object(rk.weights_hash(net)))) == 1
    raises(ValueError, ["fused"], rm.SyncBatchNormalization, fused=True)


# ---- TensorFlow's strategies -------------------------------------------------------------------------------------------


def trained_under(strategy, global_batch, local):
    """The weights of a model after an epoch of 16 rows of everybody, in batches of `global_batch`."""
    x = np.random.default_rng(5).normal(size=(16 * rm.size(), 4)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    if local:  # this rank's share of every global batch, as a sharded dataset has it
        x, y = x[rm.rank() :: rm.size()], y[rm.rank() :: rm.size()]
    keras.utils.set_random_seed(rm.rank())
    with strategy.scope():
        net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, kernel_initializer="ones"), keras.layers.Dense(1, kernel_initializer="ones")])
        net.compile(optimizer=keras.optimizers.SGD(0.001), loss="mse", metrics=["mae"])
    history = net.fit(tf.data.Dataset.from_tensor_slices((x, y)).batch(global_batch), epochs=2, verbose=0)
    return [v.numpy() for v in net.trainable_variables], history.history


@check()
def strategies():
    ring = rm.Strategy()
    assert ring.num_replicas_in_sync == rm.size()
    with ring.scope():
        from_root = tf.Variable(tf.fill([2], float(rm.rank())))
    same(from_root.read_value(), [0.0, 0.0])
    step = tf.function(lambda: ring.reduce("SUM", ring.run(lambda: tf.constant(2.0)), axis=None))
    near(step(), 2.0 * rm.size())
    gathered = ring.gather(ring.run(lambda: tf.fill([1, 2], float(rm.rank()))), axis=1)
    near(gathered, [np.repeat(np.arange(rm.size()), 2)])
    weights, history = trained_under(ring, 4 * rm.size(), local=False)
    assert len(set(rm.allgather_object((str(weights), str(history))))) == 1
    reference, _ = trained_under(tf.distribute.get_strategy(), 4 * rm.size(), local=False)
    for got, want in zip(weights, reference):
        near(got, want, 1e-4)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0"], cross_device_ops=rm.RingAllReduce())
    averaged, _ = trained_under(mirrored, 4, local=True)
    for got, want in zip(averaged, reference):
        near(got, want, 1e-4)


@check()
def join():
    last = rm.size() - 1
    for turn in range(2 if rm.rank() == last else 1):
        rm.allreduce(tf.ones([2]), op=rm.Sum, name=f"uneven.{turn}")
    assert int(rm.join()) in range(rm.size())


# ---- as a program ------------------------------------------------------------------------------------------------------

if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    CHECKS.run(rm)
