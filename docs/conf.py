"""Configuration of Sphinx, which builds a copy of this folder with the output of pages."""

import warnings

import matplotlib

import dphmm

matplotlib.use("agg")
warnings.simplefilter("error", category=UserWarning)

project = "dphmm"
author = "The dphmm authors"
copyright = "the dphmm authors, Apache-2.0"
version = release = dphmm.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "sphinx_gallery.gen_gallery"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["gallery/README.rst", "gallery/*.py", "gallery/data/**", "**sg_execution_times.rst"]
default_role = "py:obj"
highlight_language = "none"
smartquotes = False  # options begin with two hyphens, and JSON has straight quotes
pygments_style = "tango"

myst_enable_extensions = ["deflist", "attrs_block"]
myst_heading_anchors = 4

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    name: name
    for name in ("FloatArray", "IntArray", "BoolArray", "StateArray", "Matrix", "MatrixLike", "Rng", "Slot", "Rational")
}
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
maximum_signature_line_length = 100
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "figures",
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"__init__\.py|town\.py",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "copyfile_regex": r"town\.py",
    "min_reported_time": 60,
    "remove_config_comments": True,
    "show_signature": False,
    "reset_modules": ("matplotlib",),
    "parallel": True,
    "capture_repr": (),
    "thumbnail_size": (440, 320),
    "nested_sections": False,
    "within_subsection_order": "FileNameSortKey",
}

html_theme = "furo"
html_title = f"dphmm {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # would fetch every page found, which a folder of files does not allow
html_theme_options = {"footer_icons": []}
html_last_updated_fmt = None
