"""The site: `make docs` builds it, runs the gallery, and takes every warning for an error."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for formulas.py

project = "obc"
author = "The obc contributors"
copyright = "The obc contributors, Apache-2.0"
extensions = [
    "formulas",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "obc"
html_css_files = ["site.css"]
html_static_path = ["_static"]
html_show_sphinx = False

myst_heading_anchors = 3  # so that a link to a heading that is gone is a warning
myst_enable_extensions = ["colon_fence"]
myst_fence_as_directive = ["math"]

# Docstrings are written with single backticks, as Markdown has them.
default_role = "code"
autodoc_typehints = "none"  # arguments say in words what they take
autodoc_member_order = "bysource"
napoleon_google_docstring = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "ignore_pattern": r"(^|/)(?!plot_)[^/]*\.py$",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "capture_repr": (),
}
