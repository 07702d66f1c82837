"""What every benchmark prints and writes: rows of {name, unit, ours, peer, theirs, ratio, goal, pass}.

`ratio` is ours to theirs, so that more is better for rates and less for times; `goal` is the bound in words, `pass` whether it
is kept. A benchmark without a peer in the same run has `peer`, `theirs` and `ratio` null.
"""

import json
import pathlib


def row(name, unit, ours, goal, ok, peer=None, theirs=None):
    ratio = ours / theirs if theirs else None
    return {"name": name, "unit": unit, "ours": ours, "peer": peer, "theirs": theirs, "ratio": ratio, "goal": goal, "pass": bool(ok)}


def figure(value):
    return "-" if value is None else f"{value:.4g}"


def finish(rows, path):
    """Prints the table, writes the rows, returns the exit code."""
    width = max(len(r["name"]) for r in rows)
    print(f"{'what':<{width}}  {'ours':>9}  {'theirs':>9}  {'unit':<6}  {'goal':<12}")
    for r in rows:
        verdict = "" if r["pass"] else "  MISSED"
        print(f"{r['name']:<{width}}  {figure(r['ours']):>9}  {figure(r['theirs']):>9}  {r['unit']:<6}  {r['goal']:<12}{verdict}")
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(r["pass"] for r in rows) else 1
