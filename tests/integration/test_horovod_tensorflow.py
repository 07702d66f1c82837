"""Scripts as Horovod's documentation has its users write them, with the shim on PYTHONPATH: nothing in them says Ringmaster."""

import json
import re
import subprocess
import textwrap

import pytest

from conftest import ROOT
from group import Group

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "2"}


@pytest.fixture(scope="module")
def tensorflow_215():
    """The interpreter of the oldest TensorFlow that we support; installed when it is not there."""
    venv = ROOT / "build/venv-tf215"
    command = [ROOT / "tools/install-venv.sh", venv, ROOT / "requirements-tf215.txt"]
    subprocess.run(command, check=True, timeout=900)
    return venv / "bin/python"


@pytest.fixture
def run(keep, env, sidecar_path, launch_path, python_path, client_library, tmp_path, wait_for):
    def start(script, python=None, policy=None, timeout_s=280, **more):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(script))
        paths = f"{ROOT / 'client/python/shim'}:{ROOT / 'client/python'}"
        variables = {**env, **QUIET, "PYTHONPATH": paths, "RINGMASTER_LIBRARY_DIR": str(client_library.parent), **more}
        commands = {f"worker-{i}": [python or python_path, path] for i in range(2)}
        restart = "OnFailure" if policy else "Never"
        group = keep(Group(sidecar_path, launch_path, commands, env=variables, policy=policy, restart_policy=restart)).start()
        wait_for(lambda: over(group), timeout_s, "the end of the job")
        for member in group.members:
            assert group.launchers[member].poll() == 0, (group.dir / member / "err").read_text()[-4000:]
        return [group.out(member) for member in group.members]

    return start


def over(group):
    report = group.control.last
    return all(p.poll() is not None for p in group.launchers.values()) or bool(report and report.get("gave_up"))


def last(out):
    return json.loads(out.splitlines()[-1])


KERAS = """
    import json, sys
    import numpy as np
    import tensorflow as tf
    import horovod.tensorflow.keras as hvd

    hvd.init()
    tf.keras.utils.set_random_seed(hvd.rank())
    rng = np.random.default_rng(hvd.rank())
    x = rng.normal(size=(64, 8)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int64")
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(8)

    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2, activation="softmax")])
    opt = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01 * hvd.size()), backward_passes_per_step=1, average_aggregated_gradients=True)
    model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01 * hvd.size(), warmup_epochs=1, verbose=1),
    ]
    if hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.keras"))
    history = model.fit(dataset, steps_per_epoch=8 // hvd.size(), callbacks=callbacks, epochs=3, verbose=1 if hvd.rank() == 0 else 0)
    weights = [w.tolist() for w in model.get_weights()]
    print("\\n" + json.dumps({"loss": history.history["loss"], "weights": weights}), flush=True)
"""


def test_keras_with_callbacks(run):
    one, other = map(last, run(KERAS))
    assert one == other and one["loss"][2] < one["loss"][0]


def test_keras_with_callbacks_on_tensorflow_215(run, tensorflow_215):
    one, other = map(last, run(KERAS, tensorflow_215))
    assert one == other and one["loss"][2] < one["loss"][0]


def test_custom_loop(run):
    one, other = map(
        last,
        run(
            """
            import json
            import numpy as np
            import tensorflow as tf
            import horovod.tensorflow as hvd

            hvd.init()
            rng = np.random.default_rng(hvd.rank())
            x = rng.normal(size=(64, 4)).astype("float32")
            dataset = tf.data.Dataset.from_tensor_slices((x, x @ np.ones((4, 1), "float32"))).repeat().shuffle(64, seed=hvd.rank()).batch(16)
            model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
            loss = tf.losses.MeanSquaredError()
            opt = tf.optimizers.SGD(0.02 * hvd.size())
            checkpoint = tf.train.Checkpoint(model=model, optimizer=opt)

            @tf.function
            def training_step(features, labels, first_batch):
                with tf.GradientTape() as tape:
                    loss_value = loss(labels, model(features, training=True))
                tape = hvd.DistributedGradientTape(tape)
                grads = tape.gradient(loss_value, model.trainable_variables)
                opt.apply_gradients(zip(grads, model.trainable_variables))
                return loss_value

            losses = []
            for batch, (features, labels) in enumerate(dataset.take(60 // hvd.size())):
                loss_value = training_step(features, labels, batch == 0)
                if batch == 0:
                    hvd.broadcast_variables(model.variables, root_rank=0)
                    variables = opt.variables() if callable(opt.variables) else opt.variables
                    hvd.broadcast_variables(variables, root_rank=0)
                losses.append(float(hvd.allreduce(loss_value)))
            if hvd.rank() == 0:
                checkpoint.save("./checkpoints/step")
            print(json.dumps({"losses": losses, "weights": [v.numpy().tolist() for v in model.variables]}), flush=True)
            """,
        ),
    )
    assert one == other and one["losses"][-1] < 0.1 * one["losses"][0]


def test_tf1_session_on_tensorflow_215(run, tensorflow_215):
    one, other = map(
        last,
        run(
            """
            import json
            import numpy as np
            import tensorflow.compat.v1 as tf
            import horovod.tensorflow as hvd

            tf.disable_v2_behavior()
            hvd.init()
            config = tf.ConfigProto()
            config.gpu_options.visible_device_list = str(hvd.local_rank())
            rng = np.random.default_rng(hvd.rank())
            image, label = tf.placeholder(tf.float32, [None, 4]), tf.placeholder(tf.float32, [None, 1])
            hidden = tf.layers.dense(image, 8, activation=tf.nn.relu)
            predict = tf.layers.dense(hidden, 1)
            loss = tf.losses.mean_squared_error(label, predict)
            opt = tf.train.AdamOptimizer(0.01 * hvd.size())
            opt = hvd.DistributedOptimizer(opt)
            global_step = tf.train.get_or_create_global_step()
            train_op = opt.minimize(loss, global_step=global_step)
            mean_loss = hvd.allreduce(loss, name="mean_loss")
            weights = tf.concat([tf.reshape(v, [-1]) for v in tf.trainable_variables()], 0)
            hooks = [
                hvd.BroadcastGlobalVariablesHook(0),
                tf.train.StopAtStepHook(last_step=80 // hvd.size()),
                tf.train.LoggingTensorHook(tensors={"step": global_step, "loss": loss}, every_n_iter=10),
            ]
            checkpoint_dir = "./checkpoints" if hvd.rank() == 0 else None
            losses = []
            with tf.train.MonitoredTrainingSession(checkpoint_dir=checkpoint_dir, hooks=hooks, config=config) as mon_sess:
                while not mon_sess.should_stop():
                    x = rng.normal(size=(16, 4))
                    _, value, last = mon_sess.run([train_op, mean_loss, weights], feed_dict={image: x, label: x.sum(1, keepdims=True)})
                    losses.append(float(value))
            print(json.dumps({"losses": losses, "steps": len(losses)}), flush=True)
            """,
            tensorflow_215,
        ),
    )
    assert one == other and one["steps"] == 40 and one["losses"][-1] < one["losses"][0]


ELASTIC = """
    import json, os, signal
    import numpy as np
    import tensorflow as tf
    import horovod.tensorflow.keras as hvd

    hvd.init()
    print("begun", os.getpid(), flush=True)
    tf.keras.utils.set_random_seed(hvd.rank())
    x = np.random.default_rng(hvd.rank()).normal(size=(64, 4)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).repeat().batch(8)
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01 * hvd.size())))
    model.fit(dataset, steps_per_epoch=1, epochs=1, verbose=0)

    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    def on_state_reset():
        print("reset", state.epoch, flush=True)
        state.model.fit(dataset, steps_per_epoch=1, epochs=1, verbose=0)

    state.register_reset_callbacks([on_state_reset])

    class Die(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if hvd.rank() == 1 and os.environ["RINGMASTER_ROUND"] == "1" and state.epoch == 2 and batch == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    callbacks = [
        Die(),
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.UpdateBatchStateCallback(state),
        hvd.elastic.CommitStateCallback(state, batches_per_commit=4),
    ]

    @hvd.elastic.run
    def train(state):
        state.model.fit(dataset, steps_per_epoch=8, epochs=5 - state.epoch, callbacks=callbacks, verbose=0)

    train(state)
    weights = [w.tolist() for w in state.model.get_weights()]
    print("\\n" + json.dumps({"epoch": state.epoch, "weights": weights, "steps": int(state.model.optimizer.iterations.numpy())}), flush=True)
"""


def test_elastic_keras_survives_a_killed_worker(run):
    """The other one keeps its process; the one that is started again takes the state from it."""
    one, other = run(ELASTIC, policy={"elastic": True, "backoffBaseSeconds": 0}, timeout_s=280)
    assert last(one) == last(other) and last(one)["epoch"] == 5, (one, other)
    assert len(re.findall("begun", one)) == 1 and len(re.findall("begun", other)) == 2
    assert "reset 2" in one and "reset" not in other
