"""The documentation site: Sphinx reads this; `CONTRIBUTING.md` says how a page is written.

Pages are Markdown that reads well in a plain view of the repository: toctrees are the only directives, links are paths.
Every build reads everything anew (`--fresh-env`), since Sphinx remembers pages and not what it warned of. Doctests are
pytest's. A public name has one page, under the shortest name that imports it. Nothing comes from another host.
"""

import sys
import typing
from importlib.metadata import version as version_of
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import build_reference
import repository_links

project = "Shoal"
author = "The Shoal developers"
copyright = author
release = version = version_of("shoal")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery", "**.ipynb"]
templates_path = ["_templates"]

# Pages. Their links work in a plain view of the repository; `repository_links.py` makes them work here too.
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
smartquotes_action = "D"  # dashes; quotes stay, since "loop" is a value
highlight_language = "none"  # a block without a language is output
repository_address = ""  # such as "https://example.org/shoal/blob/main"; without one, files outside docs/ are downloads

# Warnings are errors (`make docs`). A name in a signature or a docstring must be documented or be another library's.
nitpicky = True
nitpick_ignore_regex = [
    # Of an annotation with a comma, as Sphinx splits it.
    ("py:class", r"tuple\[str"),
    (r"py:class", r"(torch|numpy|pandas|matplotlib|pydantic|collections|typing|pathlib)\..*|NDArray|Axes"),
    # What users are handed and pass on, and seldom look into: described in the source of its module.
    (r"py:class", r"shoal\.(config|reports|runs)\..*|AuditWatch"),
    (r"py:class", r"shoal\.[\w.]+\.(PlannedRun|SweepPoint|SweepWatch|UpdateCollector)"),
    (r"py:class", r"shoal\.[\w.]+\.(Fitted\w+|Vectors\w+|Auxiliary|Availability|CohortTrainer|_Result)"),
    (r"py:class", r"shoal\.[\w.]+\.(FinalAttacks|Layout|Margins|Membership|PartitionIndices|Predictions|Estimate)"),
    (r"py:class", r"shoal\.[\w.]+\.(AttackBound|ClusterNumber|Finding|RoundClock|SeedTest|SpanEnds)"),
    (r"py:class", r"shoal\.[\w.]+\.(Regression|VisibleMoves|Workplace|_Item|_Shared)"),
    (r"py:class", r"shoal\.[\w.]+\.(ReceivedModels|RoundAttack|Schedule|SimulationState|Rows|WarmStart)"),
]

# The reference. Every public object has one page, under the shortest name that imports it.
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "code"
add_module_names = False
python_maximum_signature_line_length = 88
python_trailing_comma_in_multi_line_signatures = False

# The gallery. A script whose bytes are unchanged is not run again, and one that fails ends the build.
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "auto_gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "backreferences_dir": "auto_gallery/uses",
    "doc_module": ("shoal",),
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "show_memory": False,
    "write_computation_times": False,  # its page loads scripts from elsewhere
    "min_reported_time": 1,
    "ignore_repr_types": r"matplotlib|list|tuple",  # what drawing returns
    "remove_config_comments": True,
    "image_scrapers": ("matplotlib",),
    "reset_modules": ("matplotlib",),
}

html_theme = "pydata_sphinx_theme"
html_title = "Shoal"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_sidebars = {
    "start": [],
    "own-data": [],
    "choosing": [],
    "views": [],
    "protection": [],
    "real": [],
    "deployment": [],
}  # pages that are sections of their own
html_theme_options = {
    "logo": {"text": "Shoal"},
    "header_links_before_dropdown": 10,
    "navigation_with_keys": False,
    "navbar_persistent": ["search-button"],  # the field would break ten links into two lines
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}


def drop_checks(app, obj, bound_method):  # noqa: ANN001, ANN201, ARG001 (Sphinx's hook)
    """Shows ``Annotated[int, Field(ge=1)]`` as ``int`` and a default that is made anew as ``...``.

    The ranges of settings are in configuration.md. It changes the objects of this process, which runs nothing after it.
    """
    owner = getattr(sys.modules.get(obj.__module__), obj.__qualname__.partition(".")[0], obj)
    for each in (obj, owner):
        try:
            each.__annotations__ = typing.get_type_hints(each)
        except (AttributeError, NameError, TypeError):  # no Python function, or types that only the checker imports
            continue
    if getattr(obj, "__defaults__", None):
        obj.__defaults__ = tuple(... if repr(value) == "<factory>" else value for value in obj.__defaults__)


def setup(app):  # noqa: ANN001, ANN201 (a hook, untyped where Sphinx is not installed)
    """Registers what the pages need beyond the extensions."""
    app.add_config_value("repository_address", "", "env", types=[str])
    app.connect("autodoc-before-process-signature", drop_checks)
    build_reference.setup(app)
    repository_links.setup(app)
