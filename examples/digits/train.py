#!/usr/bin/env python3
"""Trains a small convolutional network on scikit-learn's handwritten digits (1797 images of 8x8), on any number of ranks.

    python examples/digits/train.py                                 # alone
    ringmaster run -np 4 -- python examples/digits/train.py         # four ranks
    ringmaster run -f examples/digits/trainingjob.yaml              # a chief and three workers

Every rank takes its part of each global batch. Which images those are depends on the seed, the epoch and the step alone, so a
run that was interrupted goes on with the very step that comes next.
"""

import argparse
import contextlib
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # the images are small: a CPU is enough


@contextlib.contextmanager
def quiet_stderr():
    """TensorFlow's libraries remark on the machine while they load, before any log level counts."""
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


with quiet_stderr():
    import keras
    import numpy as np
    import ringmaster.keras as rm
    import tensorflow as tf
    from ringmaster import checkpoint
    from sklearn.datasets import load_digits

SEED = 20


def load():
    """(x_train, y_train), (x_test, y_test): 80 % and 20 %, split the same way everywhere."""
    digits = load_digits()
    x = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    y = digits.target.astype(np.int32)
    order = np.random.default_rng(SEED).permutation(len(x))
    cut = len(x) * 4 // 5
    return (x[order[:cut]], y[order[:cut]]), (x[order[cut:]], y[order[cut:]])


def shard(count, epoch, batch):
    """The images of this rank in this epoch: `batch` of each global batch, in the order of the steps."""
    ranks = rm.size()
    steps = count // (batch * ranks)
    order = np.random.default_rng([SEED, epoch]).permutation(count)[: steps * batch * ranks]
    return order.reshape(steps, ranks, batch)[:, rm.rank()].reshape(-1)


def build(width):
    """The network, with weights that depend on the seed alone."""
    keras.utils.set_random_seed(SEED)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(width, 3, padding="same", activation="relu"),
            layers.Conv2D(width, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * width, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(2 * width, activation="relu"),
            layers.Dense(10),
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch", type=int, default=16, help="images of one rank in one step (default 16)")
    parser.add_argument("--width", type=int, default=96, help="channels of the first layers (default 96)")
    args = parser.parse_args()

    # Several ranks share this machine's cores.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rm.init()

    (x_train, y_train), (x_test, y_test) = load()
    steps = len(x_train) // (args.batch * rm.size())
    model = build(args.width)
    model.compile(
        optimizer=rm.DistributedOptimizer(keras.optimizers.Adam(1e-3)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    saver = rm.callbacks.CheckpointCallback()
    begin = saver.restore(model)
    if begin.step > 0 and rm.rank() == 0:
        print(f"resumed at step {begin.step}: epoch {begin.epoch}, {begin.step_in_epoch} of {steps} steps are done", flush=True)
    callbacks = [
        rm.callbacks.BroadcastGlobalVariablesCallback(0),
        rm.callbacks.MetricAverageCallback(),
        rm.callbacks.ProgressCallback(total_steps=args.epochs * steps, hash_weights=False),
        saver,
    ]
    for epoch in range(begin.epoch, args.epochs):
        mine = shard(len(x_train), epoch, args.batch)
        if epoch == begin.epoch:
            mine = mine[begin.step_in_epoch * args.batch :]
        if len(mine) == 0:
            continue  # the checkpoint was saved at the end of this epoch
        history = model.fit(
            x_train[mine],
            y_train[mine],
            batch_size=args.batch,
            shuffle=False,
            initial_epoch=epoch,
            epochs=epoch + 1,
            callbacks=callbacks,
            verbose=0,
        )
        if rm.rank() == 0:
            logs = {name: values[-1] for name, values in history.history.items()}
            print(f"epoch {epoch + 1}/{args.epochs}  loss {logs['loss']:.4f}  accuracy {logs['accuracy']:.4f}", flush=True)

    _, accuracy = model.evaluate(x_test, y_test, batch_size=64, verbose=0)
    weights = rm.weights_hash(model)
    rm.report(metrics={"accuracy": accuracy, "weights_hash": weights})
    if checkpoint.available():
        checkpoint.wait(60)
    if rm.rank() == 0:
        print(f"test accuracy {accuracy:.4f}", flush=True)
    print(f"rank {rm.rank()} of {rm.size()}: weights {weights}", flush=True)
    rm.shutdown()


if __name__ == "__main__":
    main()
