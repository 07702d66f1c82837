#!/usr/bin/env python3
"""Reads the demo's report.json and says, line by line, whether it is what the demo promises. Exit code 0 when all is.

    check_report.py build/demo/report.json [--ranks 4] [--restarts 1] [--accuracy 0.95]
"""

import argparse
import json
import pathlib
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--accuracy", type=float, default=0.95)
    args = parser.parse_args()

    report = json.loads(args.report.read_text())

    def number(name):
        value = report.get(name)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else float("nan")

    interval = number("checkpoint_interval")
    checks = [
        ("succeeded", report.get("succeeded") is True, "true"),
        ("ranks", report.get("ranks") == args.ranks, str(args.ranks)),
        ("restarts", report.get("restarts") == args.restarts, str(args.restarts)),
        ("weights_equal", report.get("weights_equal") is True, "true"),
        ("accuracy", number("accuracy") >= args.accuracy, f">= {args.accuracy}"),
        ("recovery_seconds", number("recovery_seconds") > 0, "> 0"),
        ("steps_lost", 0 <= number("steps_lost") <= interval, f"0 to {interval:g}, the checkpoint interval"),
    ]
    for name, ok, wanted in checks:
        print(f"  {'ok ' if ok else 'BAD'} {name} = {json.dumps(report.get(name))}" + ("" if ok else f" (wanted: {wanted})"))
    return 0 if all(ok for _, ok, _ in checks) else 1


if __name__ == "__main__":
    sys.exit(main())
