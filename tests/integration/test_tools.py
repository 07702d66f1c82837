"""The rules that `make lint` checks by itself find what they are there for."""

import subprocess
import sys

import pytest
from conftest import PATIENCE_S


def run_tool(root, tool, tree):
    command = [sys.executable, str(root / "tools" / tool), str(tree)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)


def write(tree, files):
    for path, text in files.items():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


LAYERS = [
    ("cli/a.c", '#include "sidecar/ring/engine.h"\n', "cli includes sidecar/ring/engine.h"),
    ("sidecar/a.c", '#include "cli/view.h"\n', "sidecar includes cli/view.h"),
    ("operator/a.c", '#include "cli/view.h"\n', "operator includes cli/view.h"),
    ("client/c/src/a.c", '#include "base/error.h"\n', "client includes lib/base/error.h"),
    ("lib/base/a.c", '#include "job/job.h"\n', "base includes lib/job/job.h"),
    ("lib/job/a.c", "#include <openssl/hmac.h>\n", "lib/base/certificate.c, lib/base/crypto.c, lib/base/tls.c alone"),
    ("lib/job/a.c", '#include "job/gone.h"\n', "no file of this project"),
]


@pytest.mark.parametrize(("path", "text", "message"), LAYERS)
def test_an_include_across_layers_is_found(root, tmp_path, path, text, message):
    headers = ["sidecar/ring/engine.h", "cli/view.h", "lib/base/error.h", "lib/job/job.h"]
    write(tmp_path, dict.fromkeys(headers, "") | {path: text})
    result = run_tool(root, "check_layers.py", tmp_path)
    assert result.returncode == 1
    assert message in result.stdout


SOURCE = [
    ("int f(char *a) { return atoi(a); }\n", "atoi() is not used here"),
    ("void f(char *a, char *b) { strcpy(a, b); }\n", "strcpy() is not used here"),
    ('char *f(void) { return getenv("HOME"); }\n', "getenv() outside the option table"),
    ("/* TODO: later */\n", "a TODO names its issue"),
    ("int f(void)\n{\n" + "    g();\n" * 90 + "}\n", "f() is 91 lines long"),
    ("\n" * 800, "801 lines"),
]


@pytest.mark.parametrize(("text", "message"), SOURCE)
def test_a_banned_call_or_an_overlong_function_is_found(root, tmp_path, text, message):
    write(tmp_path, {"lib/job/a.c": text})
    result = run_tool(root, "check_source.py", tmp_path)
    assert result.returncode == 1
    assert message in result.stdout


def test_what_stands_in_comments_and_texts_is_no_call(root, tmp_path):
    write(tmp_path, {"lib/job/a.c": '/* atoi(x) is bad */\nconst char *t = "strcpy(a, b)";\nint x = my_atoi(1);\n'})
    result = run_tool(root, "check_source.py", tmp_path)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("tool", ["check_layers.py", "check_source.py"])
def test_the_tree_keeps_the_rules(root, tool):
    result = run_tool(root, tool, root)
    assert result.returncode == 0, result.stdout
