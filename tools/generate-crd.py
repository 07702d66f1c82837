#!/usr/bin/env python3
"""Writes crd/trainingjob.yaml from crd/source/.

    tools/generate-crd.py            write crd/trainingjob.yaml
    tools/generate-crd.py --check    fail when crd/trainingjob.yaml is not what would be written
    tools/generate-crd.py --pods     first read Kubernetes' pod template anew into crd/source/pod-template.json

crd/source/trainingjob.yaml is ours, written by hand. A line that holds nothing but @NAME@ is replaced by the part of that
name in PARTS below, indented like it; "key: @NAME@" by a type of Kubernetes.

crd/source/pod-template.json is Kubernetes' PodTemplateSpec as a structural schema without descriptions. It is read anew
with --pods for each Kubernetes release (a pod field that the schema does not know is dropped by the API server): raise
k8s.io/api in tools/pod-template-schema/go.mod first. Only --pods needs Go; nothing here needs a package of Python.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "crd/source/trainingjob.yaml"
POD_TEMPLATE = ROOT / "crd/source/pod-template.json"
OUTPUT = ROOT / "crd/trainingjob.yaml"
WIDTH = 200

# The API server refuses objects above this size, and kubectl apply keeps a copy of the manifest in an annotation of at
# most this size.
MAX_BYTES = 262144

QUANTITY_PATTERN = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)

PARTS = {
    "QUANTITY": f"""\
anyOf: [{{type: integer}}, {{type: string}}]
x-kubernetes-int-or-string: true
pattern: '{QUANTITY_PATTERN}'
""",
    "QUANTITIES": f"""\
type: object
maxProperties: 64
additionalProperties:
  anyOf: [{{type: integer}}, {{type: string}}]
  x-kubernetes-int-or-string: true
  pattern: '{QUANTITY_PATTERN}'
""",
    "ROLES": """\
type: object
minProperties: 1
maxProperties: 5
x-kubernetes-validations:
- rule: self.all(k, k in ['Chief', 'Master', 'Worker', 'PS', 'Evaluator'])
  message: roles are Chief, Master, Worker, PS and Evaluator
- rule: "!('Chief' in self && 'Master' in self)"
  message: a job has a Chief or a Master, not both
- rule: "['Chief', 'Master'].all(k, !(k in self) || self[k].replicas == 1)"
  message: Chief and Master have exactly 1 replica
- rule: "!('Evaluator' in self) || self['Evaluator'].replicas <= 1"
  message: Evaluator has at most 1 replica
- rule: "['Chief', 'Master', 'Worker'].exists(k, k in self && self[k].replicas > 0)"
  message: at least one replica of Chief, Master or Worker is needed
additionalProperties:
  type: object
  required: [template]
  properties:
    replicas:
      description: Number of pods of this role.
      type: integer
      format: int32
      default: 1
      minimum: 0
      maximum: 10000
    restartPolicy:
      description: ExitCode restarts after codes from 128, which signals and the infrastructure cause, and fails the job after 1 to 127.
      type: string
      default: %s
      enum: [Always, OnFailure, Never, ExitCode]
    template: @POD_TEMPLATE@
""",
}


def die(text):
    sys.exit(f"generate-crd: {text}")


def read_pod_template():
    """Runs the Go program and returns the schema with our bounds."""
    done = subprocess.run(
        ["go", "run", "."], cwd=ROOT / "tools/pod-template-schema", stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        die("the pod template was not read; what Go said stands above")
    schema = json.loads(done.stdout)
    spec = schema["properties"]["spec"]
    # Pods cannot be created with ephemeral containers.
    del spec["properties"]["ephemeralContainers"]
    schema["required"] = ["spec"]
    # Bounds without which rules over containers would be too costly for the API server.
    containers = spec["properties"]["containers"]
    containers["minItems"] = 1
    containers["maxItems"] = 64
    containers["items"]["properties"]["name"].update(minLength=1, maxLength=63)
    return schema


def flow(value, indent):
    """JSON, which is YAML's flow style, broken into lines of at most WIDTH where it can be."""
    text = json.dumps(value, separators=(",", ":"))
    if indent + len(text) < WIDTH or not isinstance(value, (dict, list)) or not value:
        return text
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        parts = [json.dumps(k) + ":" + flow(v, indent + 1) for k, v in value.items()]
        return "{\n" + ",\n".join(pad + p for p in parts) + "}"
    return "[\n" + ",\n".join(pad + flow(v, indent + 1) for v in value) + "]"


def expand(text, types):
    out = []
    for line in text.splitlines():
        alone = re.fullmatch(r"( *)@([A-Z_]+)(?:\((\w+)\))?@", line)
        typed = re.fullmatch(r"( *)((?:- )?\w+): @([A-Z_]+)@", line)
        if alone:
            pad, name, argument = alone.groups()
            if name not in PARTS:
                die(f"{SOURCE.name}: no part is called {name}")
            part = PARTS[name] % argument if argument else PARTS[name]
            out += [pad + inner for inner in expand(part, types)]
        elif typed and typed.group(3) in types:
            pad, key, name = typed.groups()
            body = flow(types[name], 1).splitlines()
            out.append(f"{pad}{key}: {body[0]}")
            out += [pad + inner for inner in body[1:]]
        elif re.search(r"@[A-Z_]+[@(]", line):
            die(f"{SOURCE.name}: cannot be expanded: {line.strip()}")
        else:
            out.append(line)
    return out


def generate():
    template = json.loads(POD_TEMPLATE.read_text())
    volume = template["properties"]["spec"]["properties"]["volumes"]["items"]["properties"]
    types = {
        "POD_TEMPLATE": template,
        "VOLUME_CLAIM": volume["ephemeral"]["properties"]["volumeClaimTemplate"],
    }
    source = SOURCE.read_text()
    body = source[source.index("apiVersion:") :]
    head = "# Generated by tools/generate-crd.py from crd/source/. Do not edit.\n"
    return head + "\n".join(expand(body, types)) + "\n"


def main(arguments):
    if set(arguments) - {"--check", "--pods"}:
        die("unknown argument; see the top of this file")
    if "--pods" in arguments:
        POD_TEMPLATE.write_text(json.dumps(read_pod_template(), separators=(",", ":")) + "\n")
    text = generate()
    if len(text) > MAX_BYTES:
        die(f"the manifest has {len(text)} bytes, the API server takes {MAX_BYTES}")
    if "--check" in arguments:
        if not OUTPUT.exists() or OUTPUT.read_text() != text:
            die(f"{OUTPUT.relative_to(ROOT)} is stale; run tools/generate-crd.py")
        return
    OUTPUT.write_text(text)
    print(f"{OUTPUT.relative_to(ROOT)}: {len(text)} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
