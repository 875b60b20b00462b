"""The site: Sphinx reads this file. ``make docs`` builds it into build/site."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "docs" / "_ext"), str(ROOT / "src"), str(ROOT)]

from ctem import __version__

project = "ctem"
author = "The ctem developers"
release = version = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_gallery.gen_gallery",
    "sphinx_copybutton",
    "mathml",
    "docstrings",
    "reference",
    "borrowed",
]
exclude_patterns = ["_ext", "examples", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5"]
nitpicky = True
nitpick_ignore_regex = [
    ("py:class", ".*"),
    ("py:obj", r"typing\.Annotated.*"),
]  # types in signatures are text here, most of them of other libraries

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "show_memory": False,
    "min_reported_time": 0,
    "download_all_examples": False,
    "matplotlib_animations": False,
    "show_signature": False,
    "ignore_repr_types": r"matplotlib|ndarray",
}

html_theme = "furo"
html_title = f"ctem {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["llms.txt"]
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_math_renderer = "mathml"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#8ab8ef", "color-brand-content": "#8ab8ef"},
}
