"""Settings of the documentation site; `make docs` builds it. What is generated from the code is in
generate.py."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))
import generate  # noqa: E402

import fairbound  # noqa: E402

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}  # of examples that start processes

project = "fairbound"
author = "The fairbound developers"
project_copyright = "The fairbound developers, Apache-2.0"
release = version = fairbound.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.ipynb"]
suppress_warnings = [
    "config.cache",
    "ref.python",
]  # the gallery's settings hold functions; a short name may have two targets
# names in signatures need not be links; Markdown links must exist
nitpick_ignore_regex = [("py:.*", ".*")]

myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

OPTIONAL = ("keras", "tensorflow", "jax", "lightning", "transformers", "accelerate")
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # those of Lightning and Transformers are theirs
autodoc_default_options = {"members": True, "show-inheritance": True}
toc_object_entries_show_parents = "hide"  # "On this page" is narrow
autodoc_typehints = "description"  # signatures stay short
autoclass_content = "both"
autodoc_mock_imports = [name for name in OPTIONAL if not find_spec(name)]
default_role = "code"

smartquotes = False  # --out is an option

html_theme = "pydata_sphinx_theme"
html_title = "fairbound"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
# it would be fetched, which a browser refuses where a page is opened as a file
html_show_search_summary = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}

# The gallery --------------------------------------------------------------------------------------

NEEDS = {  # examples that need more than the extra `docs`
    "accelerate_loop": "accelerate",
    "keras_model": "tensorflow",
    "lightning_module": "lightning",
    "transformers_trainer": "transformers",
}
SHOWN_ONLY = {example: package for example, package in NEEDS.items() if not find_spec(package)}

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": rf"/(?!(?:{'|'.join(SHOWN_ONLY) or '$'})\.py)\w+\.py",
    "within_subsection_order": "generate.PlaceInGallery",
    "default_thumb_file": str(DOCS / "_static" / "text_output.png"),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1e9,
    "reset_modules": ("matplotlib", "generate.restore_torch"),
    "write_computation_times": False,
}

# What pages say of the repository, as they are read -----------------------------------------------

LINKS = {  # files of the repository that have a page; a page is called by its title
    r"\[\w+\.md\]\(": "[](",
    r"\]\((?:\.\./)+examples/(\w+)\.py\)": r"](/gallery/\1.rst)",
    r"\]\((?:\.\./)*(CONTRIBUTING|CHANGELOG|SECURITY)\.md": lambda found: (
        f"](/{found[1].lower()}.md"
    ),
    r"\]\(docs/": "](/",
}


def read(app, page, source):
    """Fill the marked places of a page, link to the site's own pages, and say which examples were
    not executed."""
    for mark, text in generate.TEXTS.items():
        if mark in source[0]:
            source[0] = source[0].replace(mark, text())
    source[0] = re.sub(r"<!-- api: (.*?) -->", lambda found: generate.api(found[1]), source[0])
    if whole := re.fullmatch(r"<!-- the file (\S+) -->\n", source[0]):
        app.env.note_dependency(str(DOCS.parent / whole[1]))
        source[0] = (DOCS.parent / whole[1]).read_text(encoding="utf-8")
    for pattern, link in LINKS.items():
        source[0] = re.sub(pattern, link, source[0])
    if (package := SHOWN_ONLY.get(page.removeprefix("gallery/"))) is not None:
        said = (
            f"Shown without its output: {package} was not installed here. `make docs-all`"
            " executes it."
        )
        source[0] = source[0].replace(
            "\n.. code-block::", f"\n.. note:: {said}\n\n.. code-block::", 1
        )


def setup(app):
    app.connect("source-read", read)
    app.add_html_math_renderer("mathml", (generate.typeset, None), (generate.typeset, None))
    app.connect("autodoc-process-docstring", generate.as_rst, priority=400)  # before napoleon
