"""What the checks of the C source go over, and how they end."""

import pathlib
import sys

TOPS = ("lib", "sidecar", "cli", "client", "operator")


def check_all(check_file):
    """Prints the problems that check_file(root, path) yields for each source file of the tree; the exit code."""
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    problems = []
    for top in TOPS:
        for source in sorted((root / top).rglob("*.[ch]")):
            problems += check_file(root, source)
    for problem in problems:
        print(problem)
    return 1 if problems else 0
