#!/usr/bin/env python3
"""The classic parameter server: between-graph replication with --ps_hosts --worker_hosts --job_name --task_index.

Nothing of Ringmaster is imported. Workers update the variables that the servers hold, each at its own pace, and end when the
global step has come to --steps. A server joins for ever; it is ended when the job is done.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ps_hosts", required=True, help="host:port,...")
    parser.add_argument("--worker_hosts", required=True, help="host:port,...")
    parser.add_argument("--job_name", required=True, choices=["ps", "worker"])
    parser.add_argument("--task_index", type=int, required=True)
    parser.add_argument("--steps", type=int, default=300, help="of all workers together (default 300)")
    parser.add_argument("--batch", type=int, default=32)
    args = parser.parse_args()

    tf.disable_v2_behavior()
    cluster = tf.train.ClusterSpec({"ps": args.ps_hosts.split(","), "worker": args.worker_hosts.split(",")})
    server = tf.train.Server(cluster, job_name=args.job_name, task_index=args.task_index)
    if args.job_name == "ps":
        print(f"ps {args.task_index}: serving", flush=True)
        server.join()

    digits = load_digits()
    x = (digits.images / 16.0).reshape(-1, 64).astype(np.float32)
    y = digits.target.astype(np.int64)
    cut = len(x) * 4 // 5

    place = tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:worker/task:{args.task_index}")
    with tf.device(place):
        images, labels = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.int64, [None])
        global_step = tf.train.get_or_create_global_step()
        hidden = tf.nn.relu(images @ tf.get_variable("w1", [64, 64]) + tf.get_variable("b1", [64], initializer=tf.zeros_initializer()))
        logits = hidden @ tf.get_variable("w2", [64, 10]) + tf.get_variable("b2", [10], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        train = tf.train.AdamOptimizer(2e-3).minimize(loss, global_step=global_step)
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))

    random = np.random.default_rng(args.task_index)
    hooks = [tf.train.StopAtStepHook(last_step=args.steps)]
    done, value, score = 0, float("nan"), float("nan")
    with tf.train.MonitoredTrainingSession(master=server.target, is_chief=args.task_index == 0, hooks=hooks) as session:
        while not session.should_stop():
            batch = random.integers(0, cut, args.batch)
            _, value = session.run([train, loss], {images: x[batch], labels: y[batch]})
            done += 1
            if done % 50 == 0 and not session.should_stop():
                score = session.run(accuracy, {images: x[cut:], labels: y[cut:]})
    print(f"worker {args.task_index}: {done} steps of mine, loss {value:.4f}, test accuracy {score:.4f}", flush=True)


if __name__ == "__main__":
    main()
