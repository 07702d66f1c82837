#!/usr/bin/env python3
"""Who may include whom. The table below is the whole rule; `make lint` runs this over the tree.

    tools/check_layers.py [ROOT]
"""

import re
import sys

from source_files import check_all

# A room, and the rooms whose headers it may include (its own aside). First match of the path decides the room.
ROOMS = [
    ("lib/base/", "base", set()),
    ("lib/wire/", "wire", {"base"}),
    ("lib/s3/", "s3", {"base"}),
    ("lib/checkpoint/", "store", {"base", "s3"}),
    ("lib/kube/", "kube", {"base"}),
    ("lib/job/", "job", {"base", "wire"}),
    ("sidecar/launch/", "launch", {"base", "wire"}),
    ("sidecar/ring/", "ring", {"base", "wire"}),
    ("sidecar/checkpoint/", "checkpoint", {"base", "wire", "s3", "store"}),
    ("sidecar/supervise/", "supervise", {"base", "wire", "job", "s3", "store", "ring", "checkpoint"}),
    ("sidecar/", "sidecar", {"base", "wire", "job", "s3", "store", "ring", "checkpoint", "supervise"}),
    ("operator/", "operator", {"base", "wire", "job", "kube"}),
    ("cli/", "cli", {"base", "wire", "job", "kube", "s3", "store"}),
    ("client/c/", "client", {"wire"}),
    ("client/tensorflow/", "tensorflow", {"client"}),
]

# A library that only one place knows, so that it can be changed in one place.
FOREIGN = {
    "yaml.h": {"lib/base/yaml.c"},
    "cjson/": {"lib/base/"},
    "openssl/": {"lib/base/crypto.c", "lib/base/certificate.c", "lib/base/tls.c"},
    "libwebsockets.h": {"operator/surface_parts.h"},
    "curl/": {"lib/s3/client.c", "lib/kube/client.c", "lib/kube/socks.c", "lib/kube/socks.h", "lib/kube/transfer.c", "lib/kube/transfer.h"},
    "tensorflow/": {"client/tensorflow/"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', re.M)


def room_of(path):
    for prefix, name, allowed in ROOMS:
        if path.startswith(prefix):
            return name, allowed
    return None, None


def resolve(root, source, name):
    """The path of an included file, in the order in which the compiler looks. None when it is none of ours."""
    for start in (source.parent, root / "lib", root, root / "client/c/include"):
        candidate = (start / name).resolve()
        if candidate.is_file() and candidate.is_relative_to(root):
            return candidate.relative_to(root).as_posix()
    return None


def check_file(root, source):
    path = source.relative_to(root).as_posix()
    room, allowed = room_of(path)
    if room is None:
        return
    text = source.read_text(errors="replace")
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        quoted, angled = match.groups()
        if quoted:
            target = resolve(root, source, quoted)
            if target is None:
                yield f'{path}:{line}: "{quoted}" is no file of this project'
                continue
            other, _ = room_of(target)
            if other != room and other not in allowed:
                may = ", ".join(sorted(allowed)) or "nothing else"
                yield f"{path}:{line}: {room} includes {target} ({other}); it may include {may}"
        else:
            for prefix, places in FOREIGN.items():
                if angled.startswith(prefix) and not any(path == p or (p.endswith("/") and path.startswith(p)) for p in places):
                    yield f"{path}:{line}: <{angled}> belongs to {', '.join(sorted(places))} alone"


if __name__ == "__main__":
    sys.exit(check_all(check_file))
