#!/usr/bin/env python3
"""The classic parameter server: between-graph replication with --ps_hosts --worker_hosts --job_name --task_index.

Nothing of Ringmaster is imported. Workers update the variables that the servers hold, each at its own pace, and end when the
global step has come to --steps. A server joins for ever; it is ended when the job is done.
"""

import argparse
import os
import time

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

    # How far each worker is: 1 has joined, 2 has finished. A worker that is started again just says so again.
    workers = len(args.worker_hosts.split(","))
    with tf.device("/job:ps/task:0"):
        states = tf.get_variable("states", [workers], tf.int32, initializer=tf.zeros_initializer(), trainable=False)
    state = tf.placeholder(tf.int32, [])
    say = tf.scatter_update(states, args.task_index, state)

    manager = tf.train.SessionManager(ready_op=tf.report_uninitialized_variables(), recovery_wait_secs=1)
    if args.task_index == 0:
        session = manager.prepare_session(server.target, init_op=tf.global_variables_initializer())
    else:
        session = manager.wait_for_session(server.target, max_wait_secs=120)

    def wait_for_all(least):
        session.run(say, {state: least})
        while session.run(states).min() < least:
            time.sleep(0.1)

    wait_for_all(1)
    random = np.random.default_rng(args.task_index)
    done, value, step = 0, float("nan"), 0
    while step < args.steps:
        batch = random.integers(0, cut, args.batch)
        _, value, step = session.run([train, loss, global_step], {images: x[batch], labels: y[batch]})
        done += 1
    score = session.run(accuracy, {images: x[cut:], labels: y[cut:]})
    print(f"worker {args.task_index}: {done} steps of mine, loss {value:.4f}, test accuracy {score:.4f}", flush=True)
    wait_for_all(2)  # the job is done when worker 0 is: it lets the others finish


if __name__ == "__main__":
    main()
