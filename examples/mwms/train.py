#!/usr/bin/env python3
"""Plain TensorFlow: tf.distribute.MultiWorkerMirroredStrategy and Keras `fit`, configured by TF_CONFIG alone.

Nothing of Ringmaster is imported: this is how such a script runs under it unchanged. BackupAndRestore keeps the state in a
directory that all workers share (BACKUP_DIR, or `backup` where the script runs) and goes on from there when the job is started
again. Needs tf_keras, the Keras that knows this strategy: TF_USE_LEGACY_KERAS=1.
"""

import argparse
import json
import os

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="images of one worker in one step (default 32)")
    parser.add_argument("--backup-dir", default=os.environ.get("BACKUP_DIR", "backup"))
    args = parser.parse_args()

    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {"type": "worker", "index": 0})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # first: it starts this worker's server
    replicas = strategy.num_replicas_in_sync

    digits = load_digits()
    x = (digits.images / 16.0).astype(np.float32)
    y = digits.target.astype(np.int64)
    cut = len(x) * 4 // 5
    steps = cut // (args.batch * replicas)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((x[:cut], y[:cut])).shuffle(cut, seed=20).repeat()
    data = data.batch(args.batch * replicas, drop_remainder=True).with_options(options)

    with strategy.scope():
        tf.keras.utils.set_random_seed(20)
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Input((8, 8)),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.Adam(1e-3 * replicas),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    backup = tf.keras.callbacks.BackupAndRestore(args.backup_dir)
    history = model.fit(data, epochs=args.epochs, steps_per_epoch=steps, callbacks=[backup], verbose=0)
    loss = history.history["loss"][-1] if history.history.get("loss") else float("nan")
    print(f"{task['type']} {task['index']}: {replicas} replicas, {args.epochs} epochs, loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
