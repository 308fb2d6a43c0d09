import shlex
import sys
from importlib.metadata import version as installed_version
from pathlib import Path

project = "Holdfast"
author = "Holdfast contributors"
copyright = author  # Sphinx wants this name
release = version = installed_version("holdfast")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxcontrib.mermaid"]
myst_heading_anchors = 4  # so that pages can link to each other's headings
nitpicky = True
exclude_patterns = ["scoreboard.md"]  # a part of reliability.md, not a page

# Drawings become pictures here, without a network and without a browser: docs/adr/0045.
myst_fence_as_directive = ["mermaid"]
mermaid_cmd = shlex.quote(str(Path(sys.executable).with_name("mermaidx")))
mermaid_output_format = "svg"
mermaid_params = ["--quiet"]

# The reference says what docstrings say. Types are in the text of parameters, and need no links of their own.
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False
napoleon_custom_sections = [("Attributes", "params_style")]  # as parameters: several names may share a line
add_module_names = False
nitpick_ignore_regex = [
    ("py:class", r"Path|FailoverSource|Holder|PartOf|Record|Run|Takes"),  # of the standard library, or not public
    ("py:exc", r"queue\.\w+|TypeError|ValueError|Exception"),  # of the standard library
]

html_theme = "furo"
html_title = f"Holdfast {release}"


def _resolve_short(app, env, node, contnode):
    """Find what a docstring names without its module, as ``TypedQueue.put``, in whichever module it is documented."""
    if node.get("refdomain") != "py" or node.get("refspecific"):
        return None
    node["refspecific"] = True
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], node["reftarget"], node, contnode)


def setup(app):
    """Extend Sphinx; it calls this."""
    app.connect("missing-reference", _resolve_short)
