#!/usr/bin/env python3
"""Rules for C source that no compiler checks: functions that are not used here, and sizes of files and functions.

    tools/check_source.py [ROOT]
"""

import re
import sys

from source_files import check_all

FILE_LINES = 700
FUNCTION_LINES = 80
COLUMNS = 160

# name: what to use in its place
BANNED = {
    "strcpy": "buf.h or snprintf",
    "strcat": "buf.h",
    "strncpy": "snprintf, which ends the string",
    "strncat": "buf.h",
    "sprintf": "snprintf",
    "vsprintf": "vsnprintf",
    "strtok": "strcspn, or strtok_r",
    "atoi": "text.h, which finds bad digits and overflow",
    "atol": "text.h",
    "atof": "text.h",
    "gets": "fs.h",
    "system": "posix_spawn or fork and exec",
    "popen": "fork and exec",
    "alloca": "a fixed buffer or the heap",
    "gmtime": "gmtime_r",
    "localtime": "localtime_r",
    "strerror_l": "%m",
    "usleep": "a timer of the loop, or nanosleep",
    "tmpnam": "mkstemp",
    "mktemp": "mkstemp",
}

# The environment is read in one place per program; the client library has no option table, it is configured by it.
GETENV_ALLOWED = ("lib/base/opt.c", "client/")
GETENV_FILES = re.compile(r"(^|/)(environment|terminal|screen)\.c$")

COMMENT_OR_TEXT = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
CALL = re.compile(r"(?<![\w.>])(\w+)\s*\(")
TODO = re.compile(r"\b(TODO|FIXME|XXX)\b(?!\(#\d+\))")


def code_only(text):
    """The text with comments and literals blanked out, of the same length and with the same lines."""
    return COMMENT_OR_TEXT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def functions(code):
    """(name, first line, last line) of each function body: a brace in column 0 that ends in a brace in column 0."""
    lines = code.split("\n")
    start = None
    for number, line in enumerate(lines, 1):
        if line.startswith("{"):
            start = number
        elif line.startswith("}") and start:
            head = " ".join(lines[max(0, start - 4) : start - 1])
            names = re.findall(r"(\w+)\s*\(", head)
            yield (names[-1] if names else "?"), start, number
            start = None


def check_file(root, source):
    path = source.relative_to(root).as_posix()
    text = source.read_text(errors="replace")
    code = code_only(text)
    lines = text.split("\n")
    for match in CALL.finditer(code):
        name = match[1]
        line = code.count("\n", 0, match.start()) + 1
        if name in BANNED:
            yield f"{path}:{line}: {name}() is not used here: {BANNED[name]}"
        elif name in ("getenv", "secure_getenv") and not path.startswith(GETENV_ALLOWED) and not GETENV_FILES.search(path):
            yield f"{path}:{line}: {name}() outside the option table: give it a row there (base/opt.h)"
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS:
            yield f"{path}:{number}: {len(line)} columns; {COLUMNS} at most"
        if "\t" in line or line != line.rstrip():
            yield f"{path}:{number}: a tab, or blanks at the end of the line"
        if TODO.search(line):
            yield f"{path}:{number}: a TODO names its issue, TODO(#12), or is done"
    if len(lines) > FILE_LINES:
        yield f"{path}: {len(lines)} lines; {FILE_LINES} at most: it has more than one reason"
    for name, first, last in functions(code):
        if last - first > FUNCTION_LINES:
            yield f"{path}:{first}: {name}() is {last - first} lines long; {FUNCTION_LINES} at most"


if __name__ == "__main__":
    sys.exit(check_all(check_file))
