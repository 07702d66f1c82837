"""Horovod's names for Ringmaster: `import horovod.torch as hvd` gives `ringmaster.torch`, the very same module.

This directory is in PYTHONPATH of jobs with `frameworks: [Horovod]` and of `ringmaster run -np` alone: nothing is shadowed elsewhere.
Every module of Horovod that scripts import is an alias in ALIASES, or lies in a directory of this package.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from typing import Any, Optional

# With all that lies below them: horovod.torch.elastic is ringmaster.torch.elastic.
ALIASES = {
    "horovod.torch": "ringmaster.torch",
    "horovod.tensorflow": "ringmaster.tensorflow",
    "horovod.keras": "ringmaster.keras",
    "horovod.common.elastic": "ringmaster.elastic",
    "horovod.common.exceptions": "ringmaster.exceptions",
    "horovod.common.process_sets": "ringmaster.process_sets",
    "horovod.runner": "ringmaster.runner",
}


def _ours(name: str) -> Optional[str]:
    for alias, target in ALIASES.items():
        if name == alias or name.startswith(alias + "."):
            return target + name[len(alias) :]
    return None


class _AliasImporter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Puts a module into sys.modules under a second name."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        ours = _ours(fullname)
        if ours is None or importlib.util.find_spec(ours) is None:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, loader_state={})

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        module = importlib.import_module(_ours(spec.name) or "")
        spec.loader_state["spec"] = module.__spec__
        return module

    def exec_module(self, module: Any) -> None:
        # The import system has written the alias's spec into the module: it goes on as what it is.
        alias = module.__spec__
        module.__spec__ = alias.loader_state["spec"]


if not any(type(finder).__name__ == "_AliasImporter" for finder in sys.meta_path):
    sys.meta_path.insert(0, _AliasImporter())

from ringmaster import __version__  # noqa: E402, F401


def __getattr__(name: str) -> Any:
    if name == "run":  # horovod.run: what it needs is not imported for a training process
        from ringmaster.runner import run

        return run
    raise AttributeError(f"module 'horovod' has no attribute {name!r}")
