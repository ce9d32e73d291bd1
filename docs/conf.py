"""Settings of Sphinx: ``tox -e docs-html`` renders these pages as HTML."""

from __future__ import annotations

import tomllib
from pathlib import Path

_pyproject = Path(__file__).parents[1] / "pyproject.toml"

project = "turnout"
author = "The turnout authors"
release = version = tomllib.loads(_pyproject.read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3
# Links to files outside of this folder lead somewhere in the repository; tests/docs checks them.
suppress_warnings = ["myst.xref_missing"]
html_title = f"turnout {release}"
