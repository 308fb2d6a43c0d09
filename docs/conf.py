from importlib.metadata import version as installed_version

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

project = "Holdfast"
author = "Holdfast contributors"
copyright = author  # Sphinx wants this name
release = version = installed_version("holdfast")

extensions = ["myst_parser"]
myst_heading_anchors = 4  # so that pages can link to each other's headings
nitpicky = True
exclude_patterns = ["scoreboard.md"]  # a part of reliability.md, not a page
lexers["mermaid"] = TextLexer()  # diagrams are drawn where the sources are shown, and stand here as text

html_theme = "furo"
html_title = f"Holdfast {release}"
