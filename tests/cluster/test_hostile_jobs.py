"""200 TrainingJobs that nobody should write: each is rejected or told what is wrong with it, or it just runs; others go on meanwhile.

Half of them were stored under an older CRD without any schema, so that nothing but the operator itself stands in their way. The others are
the schema's own fields with values at and beyond their bounds, and manifests that are valid and make no sense. HOSTILE_SEED repeats a run.
"""

import json
import os
import pathlib
import random
import time

import pytest
from fault_world import JOBS, MERGE, ROOT, Operator, Refused, World, job

SEED = int(os.environ.get("HOSTILE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
FUZZED = 110
COMMANDS = ["$(rm -rf /)", "`touch /tmp/pwned`", "'; reboot; '", "\"; exec sh; \"", "${IFS}|nc", "%s%s%n%n", "../../../etc/passwd",
    "\n\nHost: x\r\n\r\n", "\u202e\u0000",
            "\ud83d\ude00" * 50, "a" * 5000, "{{.Values}}", "<script>", "\\", "", " ", "-", "--help", "NaN", "0x10", "null", "True"]
NUMBERS = [0, 1, -1, 2 ** 31 - 1, 2 ** 31, 2 ** 53, -2 ** 63, 2 ** 63, 1e308, -1e308, 0.5, 1e-320]
OTHERS = [None, True, [], {}, [[]], {"": ""}, [None], "x", 7]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    loose = tmp_path_factory.mktemp("crd") / "loose.json"
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    anything = {"x-kubernetes-preserve-unknown-fields": True}
    schema = {**free, "properties": {"spec": anything, "status": anything}}
    version = {"name": "v1alpha1", "served": True, "storage": True, "subresources": {"status": {}}, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "TrainingJob", "listKind": "TrainingJobList", "plural": "trainingjobs", "singular": "trainingjob", "shortNames": ["tj"]}
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "trainingjobs.ringmaster.dev"},
           "spec": {"group": "ringmaster.dev", "scope": "Namespaced", "names": names, "versions": [version]}}
    loose.write_text(json.dumps(crd))
    made = World(ROOT / "build" / "api-server-hostile", 6562, 24030, loose)
    yield made
    made.close()


# ---- what they look like ---------------------------------------------------------------------------------------------------------


def valid():
    return job("x", script={"*": {"*": 0}}, sidecar=True, runPolicy={"schedulingPolicy": {"startTimeoutSeconds": 30}})


def put(tree, path, value):
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def with_spec(**parts):
    made = valid()
    made["spec"].update(parts)
    return made


def with_template(change):
    made = valid()
    change(made["spec"]["replicaSpecs"]["Worker"]["template"])
    return made


def container(**parts):
    return with_template(lambda t: t["spec"]["containers"][0].update(parts))


def deep(levels):
    tree = {}
    for _ in range(levels):
        tree = {"a": tree}
    return tree


def role(replicas, **template):
    return {"replicas": replicas, "template": {"spec": {"containers": [{"name": "main", "image": "none:1", "command": ["train"]}], **template}}}


def bypassing():
    """Those that no API server with our CRD would have stored."""
    spec = valid()["spec"]
    bodies = [None, "", "x", 7, [], {}, [spec], True, {"replicaSpecs": None}, {"replicaSpecs": []}, {"replicaSpecs": {}},
        {"replicaSpecs": {"Worker": None}},
              {"replicaSpecs": {"Worker": []}}, {"replicaSpecs": {"worker": role(1)}}, {"replicaSpecs": {"Wizard": role(1)}},
              {"replicaSpecs": {"Worker": {"replicas": 1}}}, {"replicaSpecs": {"Worker": role(1)}, "tfReplicaSpecs": {"Worker": role(1)}}]
    bodies += [{"replicaSpecs": {"Worker": {**role(1), "replicas": n}}} for n in [*NUMBERS, "3", "1e9", None, [], {}, 10001, 10000000]]
    bodies += [{"replicaSpecs": {"Worker": {"replicas": 1, "template": t}}} for t in
               ["x", [], {}, {"spec": None}, {"spec": {}}, {"spec": {"containers": None}}, {"spec": {"containers": {}}}, {"spec": {"containers": []}},
                {"spec": {"containers": [None]}}, {"spec": {"containers": [{}]}}, {"spec": {"containers": [{"name": 7}]}},
                {"metadata": 5, "spec": {"containers": [{"name": "main", "image": "i", "command": "train"}]}},
                {"metadata": {"labels": ["a"], "annotations": "b"}, "spec": {"containers": [{"name": "main", "image": "i", "command": [1, None]}]}},
                {"spec": {"containers": [{"name": "main", "image": "i", "env": {"A": 1}}], "volumes": {"a": 1}, "initContainers": "x"}}, deep(90)]]
    bodies += [{**spec, key: value} for key, value in
               [("runPolicy", 7), ("runPolicy", {"ttlSecondsAfterFinished": "soon", "backoffLimit": -7}), ("runPolicy", {"activeDeadlineSeconds": 1e300}),
                ("failurePolicy", []), ("failurePolicy", {"rules": {"a": 1}}), ("failurePolicy", {"rules": [None, 7, {}]}),
                ("failurePolicy", {"rules": [{"action": "FailJob", "onMessagePattern": "((((a{255}){255}){255}){255}){255}"}]}),
                ("failurePolicy", {"rules": [{"action": "FailJob", "onMessagePattern": "(" * 5000}]}),
                ("failurePolicy", {"rules": [{"action": "FailJob"}] * 3000}), ("frameworks", "TensorFlow"), ("frameworks", [7, None, "Cobol"]),
                ("network", {"subdomain": "A.b.C", "clusterDomain": "x" * 5000}), ("tfConfig", {"port": 99999999}), ("sidecar", {"ringPort": -1,
                "shmSize": "lots"}),
                ("checkpoint", {"path": 5, "keepLast": 0}), ("coordinator", {"role": "Wizard", "index": 1e20}), ("elasticPolicy", {"minReplicas": 9,
                "maxReplicas": 2}),
                ("suspend", "no"), ("managedBy", 7), ("volumeClaimTemplates", [None, {"metadata": {"name": "../x"}}]), ("unknown" * 50, deep(80)),
                ("x", "y" * 500000)]]
    names = ["a" * 253, "a.b.c", "0", "9-lives", "a" * 52, "a" * 51, "x" * 63 + "." + "y" * 63]
    made = [(f"stored-{i}", body, None) for i, body in enumerate(bodies)] + [(name, spec, None) for name in names]
    for i, status in enumerate(["x", [], {"phase": "Dancing"}, {"phase": "Running", "attempt": -5}, {"phase": "Running", "attempt": 1e300,
        "conditions": "x"},
                                {"conditions": [None, 7, {"type": "Failed"}]}, {"phase": "Succeeded", "completionTime": "yesterday"},
                                {"failures": {"a": 1}},
                                {"phase": "Restarting", "attempt": 2147483647, "restarts": 2147483647, "conditions": []}]):
        made.append((f"status-{i}", spec, status))
    return made


def senseless():
    """Valid as far as the schema and its rules go."""
    bomb = [{"action": "FailJob", "onMessagePattern": p} for p in ("((a{200}){200}){200}", "(.*)(.*)(.*)(.*)\\4\\3\\2\\1b", "(((((x*)*)*)*)*)*y",
        "[a", "a|*")]
    made = [with_spec(failurePolicy={"rules": [rule]}) for rule in bomb]
    made += [with_spec(replicaSpecs={name: role(n)}) for name in ("PS", "Evaluator", "Chief", "Master", "Worker") for n in (0, 1)]
    made += [with_spec(replicaSpecs={"Chief": role(1), "Master": role(1)}), with_spec(replicaSpecs={"Worker": role(10000)}),
        with_spec(replicaSpecs={"Worker": role(10001)}),
             with_spec(elasticPolicy={"minReplicas": 1, "maxReplicas": 10000}), with_spec(runPolicy={"ttlSecondsAfterFinished": 2 ** 31 - 1,
             "activeDeadlineSeconds": 1}),
             with_spec(network={"subdomain": "kubernetes", "servicePerPod": True, "clusterDomain": "a" * 200}), with_spec(tfConfig={"port": 7700},
             sidecar={"ringPort": 7700}),
             with_spec(coordinator={"role": "Worker", "index": 9999}), with_spec(checkpoint={"path": "/../../../etc", "everySteps": 10 ** 12}),
             with_spec(checkpoint={"path": "s3://" + "b" * 900}), with_spec(sidecar={"image": "; reboot"}), with_spec(sidecar={"mode": "Native",
             "image": "\u202e" * 300}),
             with_spec(managedBy="ringmaster.dev/operator", suspend=True), with_spec(frameworks=["TensorFlow", "PyTorch", "JAX", "Horovod", "MPI"]),
             with_spec(failurePolicy={"oomPolicy": {"action": "RestartWithMoreMemory", "factor": 16, "maxBytes": "9E"}}),
             with_spec(health={"progressTimeoutSeconds": 1}, failurePolicy={"backoffBaseSeconds": 86400, "backoffMaxSeconds": 86400})]
    ours = ["ringmaster-sidecar", "ringmaster-install", "ringmaster", "main"]
    made += [with_template(lambda t, n=n: t["spec"]["containers"].append({"name": n, "image": "i"})) for n in ours]
    made += [with_template(lambda t, n=n: t["spec"].setdefault("initContainers", []).append({"name": n, "image": "i"})) for n in ours]
    made += [with_template(lambda t, n=n: t["spec"].setdefault("volumes", []).append({"name": n, "emptyDir": {}})) for n in ("ringmaster",
        "ringmaster-key", "ringmaster-shm")]
    made += [with_template(lambda t, k=k, v=v: t["metadata"].setdefault("labels", {}).update({k: v})) for k, v in
             [("ringmaster.dev/job-uid", "other"), ("ringmaster.dev/attempt", "99"), ("ringmaster.dev/replica-type", "wizard"), ("no/such/key", "x"),
             ("a", "b" * 100)]]
    made += [with_template(lambda t: t["metadata"]["annotations"].update({"ringmaster.dev/main-container": "nobody"})),
             with_template(lambda t: t["metadata"].update({"name": "mine", "namespace": "kube-system"})),
             with_template(lambda t: t["metadata"].update({"ownerReferences": [{"kind": "Node", "name": "n", "uid": "u", "apiVersion": "v1",
             "controller": True}]})),
             with_template(lambda t: t["spec"].update({"nodeName": "hostile-node-0", "schedulerName": "nobody", "restartPolicy": "Always"})),
             with_template(lambda t: t["spec"].update({"hostNetwork": True, "dnsPolicy": "None", "hostname": "x", "subdomain": "y"}))]
    made += [container(command=[c], args=COMMANDS, env=[{"name": n, "value": c} for n in ("TF_CONFIG", "RINGMASTER_RANK", "LD_PRELOAD",
        "PYTHONPATH")]) for c in COMMANDS[:8]]
    made += [container(image=c or "i", name="main") for c in COMMANDS[:4]] + [container(env=[{"name": "N" + str(i),
        "value": "v" * 200} for i in range(2000)])]
    return made


def schema_paths(schema, at=()):
    """Every path of the spec, without the inside of pod templates."""
    for key, below in schema.get("properties", {}).items():
        if key in ("template", "volumeClaimTemplates"):
            continue
        yield (*at, key), below
        yield from schema_paths(below, (*at, key))


def fuzzed(schema, source, count):
    paths = list(schema_paths(schema))
    for _ in range(count):
        made = valid()
        for _ in range(source.choice([1, 1, 1, 2, 4])):
            path, field = source.choice(paths)
            near = [n + d for n in (field.get("minimum", 0), field.get("maximum", 2 ** 31 - 1)) for d in (-1, 0, 1)]
            text = [field["enum"][0]] if "enum" in field else ["x" * (field.get("maxLength", 10) + d) for d in (0, 1)] + source.sample(COMMANDS, 3)
            pick = {"integer": near + NUMBERS, "number": near + NUMBERS, "string": text, "boolean": [True, False, "false"]}.get(field.get("type"), OTHERS)
            parent = made["spec"]
            if all(isinstance(parent := parent.setdefault(k, {}), dict) for k in path[:-1]):
                put(made["spec"], path, source.choice(pick if source.random() < 0.8 else OTHERS + COMMANDS))
        yield made


# ---- what becomes of them -----------------------------------------------------------------------------------------------------------


class Good:
    """A user who has nothing to do with it. How long his jobs take."""

    def __init__(self, world) -> None:
        self.world, self.seconds = world, []

    def one(self) -> None:
        began, name = time.monotonic(), f"good-{len(self.seconds)}"
        self.world.submit("good", job(name, script={"*": {"*": 0}}))
        assert self.world.wait_final("good", name, 60)["phase"] == "Succeeded"
        self.seconds.append(time.monotonic() - began)


def submit(world, ns, name, manifest):
    """False: rejected."""
    try:
        world.api.request("POST", f"{JOBS}/namespaces/{ns}/trainingjobs", {**manifest, "metadata": {"name": name}})
        return True
    except Refused as refused:
        assert 400 <= refused.code < 500, f"{name}: {refused}"
        return False


def is_told(thing):
    """A word about it that a person can read: a condition with a message."""
    status = thing.get("status")
    conditions = status.get("conditions") if isinstance(status, dict) else None
    return any(isinstance(c, dict) and c.get("message") and c.get("reason") for c in conditions or [])


def untold(world, ns):
    return [t["metadata"]["name"] for t in world.api.items(f"{JOBS}/namespaces/{ns}/trainingjobs") if not is_told(t)]


def wait_told(world, ns, but, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while left := [n for n in untold(world, ns) if n not in but]:
        assert time.monotonic() < deadline, f"in {ns} nothing is said about {left}: " + json.dumps(world.api.get(world.path(ns, left[0])))[:3000]
        time.sleep(0.5)


def test_hostile_jobs(world):
    print(f"\nHOSTILE_SEED={SEED}")
    for ns in ("good", "stored", "hostile"):
        world.namespace(ns)
    # Pods of these would be many: the quota refuses them, and the operator has to live with that, too.
    nothing = {"kind": "ResourceQuota", "apiVersion": "v1", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    world.api.request("POST", "/api/v1/namespaces/hostile/resourcequotas", nothing)
    quota = "/api/v1/namespaces/hostile/resourcequotas/none"
    deadline = time.monotonic() + 30
    while not world.api.get(quota).get("status", {}).get("hard"):
        assert time.monotonic() < deadline, "the quota is not in force"
        time.sleep(0.2)
    count, rejected = 0, 0
    for name, spec, status in bypassing():
        if submit(world, "stored", name, {"apiVersion": "ringmaster.dev/v1alpha1", "kind": "TrainingJob", "spec": spec}):
            if status is not None:
                world.api.quietly("PATCH", world.path("stored", name) + "/status", {"status": status}, MERGE)
        else:
            rejected += 1
        count += 1
    stored_rejected = rejected
    # Half of the stored ones are met under the old CRD, the others under ours, which prunes and defaults what it reads.
    operator = Operator(world.server.kubeconfig, world.logs / "operator.log", "--leader-elect=false").start()
    good = Good(world)
    try:
        good.one()
        silent = {n for n, s in ((n, s) for n, _, s in bypassing()) if s is not None}  # what has a status that cannot be read is left alone
        wait_told(world, "stored", silent)
        assert operator.alive(), operator.log()[-3000:]
        world.apply_crd(ROOT / "crd" / "trainingjob.yaml")
        crd = world.api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.ringmaster.dev")
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        good.one()
        source = random.Random(SEED)
        for i, manifest in enumerate([*senseless(), *fuzzed(schema, source, FUZZED)]):
            if not submit(world, "hostile", f"hostile-{i}", manifest):
                rejected += 1
            count += 1
            if i % 40 == 0:
                good.one()
        wait_told(world, "hostile", set())
        # The second life of the stored ones: an operator that starts and finds them.
        assert operator.stop() == 0
        operator.start()
        good.one()
        wait_told(world, "stored", silent)
        time.sleep(2)
        good.one()
        assert operator.alive() and operator.starts == 2, operator.log()[-3000:]
        rss_kb = int(pathlib.Path(f"/proc/{operator.process.pid}/statm").read_text().split()[1]) * 4
        print(f"{count} jobs, {rejected} rejected by the API server ({stored_rejected} of them before the CRD), {count - rejected} told by the operator; "
              f"others took {max(good.seconds):.1f} s at most; {rss_kb} KiB")
    finally:
        code = operator.stop()
    assert code == 0 and not operator.findings(), operator.findings() or operator.log()[-3000:]
    assert not world.kubelet.violations, world.kubelet.violations
    assert count >= 200 and count - rejected >= 60
    assert max(good.seconds) < 40
