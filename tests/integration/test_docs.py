"""What the docs show works when pasted."""

import re

import pytest

PAGES = ["README.md", "docs/first-job.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


def blocks(page, language):
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


def manifests(root, name):
    return [text for text in blocks(root / name, "yaml") if "kind: TrainingJob" in text]


@pytest.mark.parametrize("page", PAGES)
def test_a_manifest_in_the_docs_is_valid_and_runs(root, tmp_path, ringmaster, job_dir, page):
    found = manifests(root, page)
    assert found, f"{page} shows no manifest"
    path = tmp_path / "job.yaml"
    path.write_text(found[0])
    checked = ringmaster("validate", "-f", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    ran = ringmaster("run", "-f", path, "--job-dir", job_dir)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "of 3" in ran.stdout + ran.stderr


def test_the_sum_in_the_readme_is_right(root, tmp_path, ringmaster, job_dir):
    path = tmp_path / "job.yaml"
    path.write_text(manifests(root, "README.md")[0])
    ran = ringmaster("run", "-f", path, "--job-dir", job_dir)
    for rank in range(3):
        assert f"rank {rank} of 3: the sum is 6.0" in ran.stdout + ran.stderr


def test_every_link_leads_somewhere(root):
    pages = [p for p in root.rglob("*.md") if not {"build", ".git"} & set(p.relative_to(root).parts)]
    assert len(pages) > 10
    broken = []
    for page in pages:
        for target in LINK.findall(page.read_text()):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(root)} -> {target}")
    assert broken == []


def test_the_readme_names_every_verb_that_it_uses(root):
    """`make X` in the docs is a verb of the Makefile."""
    makefile = (root / "Makefile").read_text() + (root / "tests/tests.mk").read_text()
    verbs = set(re.findall(r"^([a-z][\w-]*):.*##", makefile, re.M))
    verbs |= {"bench-" + path.stem.removeprefix("bench_") for path in (root / "bench").glob("bench_*.py")}
    shown = set()
    for page in [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]:
        shown |= {word for text in blocks(page, "sh") for word in re.findall(r"^make ([a-z][\w-]*)", text, re.M)}
        shown |= set(re.findall(r"`make ([a-z][\w-]*)[^`]*`", page.read_text()))
    assert shown - verbs == set()
