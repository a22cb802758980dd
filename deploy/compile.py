"""Compile what the image runs into PYTHONPYCACHEPREFIX: the environment, and what it uses of the standard library."""

from __future__ import annotations

import compileall
import importlib
import pkgutil
import sys
import sysconfig
from pathlib import Path
from py_compile import PycInvalidationMode

import exporter

for module in pkgutil.walk_packages(exporter.__path__, "exporter."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
library = sysconfig.get_path("stdlib")
used = sorted({file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))})
for file in used:
    if file.endswith(".py") and Path(file).is_relative_to(library):
        compileall.compile_file(file, quiet=1, force=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
compileall.compile_dir(sys.prefix, quiet=1, force=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
