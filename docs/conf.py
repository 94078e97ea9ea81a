"""The site of the pages and of the docstrings: `make site`. Its source folder is the root of the repository."""

import re
import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# The fields of config are in docs/parameters.md. hpsv3_package runs in an environment of its own.
DOCUMENTED = {"__init__.py", "core", "families", "generation.py", "library", "scorers", "training"}
DOCUMENTED |= {"reporting", "statistics.py"}
FOUND = [path for folder in ("chunk_grpo", "chunk_grpo/reporting") for path in (ROOT / folder).iterdir()]
OMITTED = [str(path) for path in FOUND if path.name not in DOCUMENTED]
# In docstrings: a block of code, code, and what reStructuredText reads but they do not mean.
MARKS = re.compile(r"(:\n\n(?= {4})(?:(?: {4}.*)?\n)+)|(`[^`]+`)|([|*]|_(?!\w))")
FIRST = '<meta http-equiv="refresh" content="0; url=README.html">'

project = html_title = "chunk-grpo"
root_doc = "README"
include_patterns = ["*.md", "docs/**", "benchmarks/studies/README.md"]
exclude_patterns = [".*", "artifacts", "build", "docs/reference/modules.rst"]
extensions = ["myst_parser", "sphinx.ext.apidoc", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
suppress_warnings = ["ref.python"]  # a type such as bytes may have the name of several fields
html_theme = "furo"
html_static_path = html_css_files = ["site.css"]
myst_heading_anchors = 4
napoleon_use_ivar = True
autodoc_use_type_comments = toc_object_entries = False  # they take most of the time
apidoc_exclude_patterns = [*OMITTED, str(ROOT / "chunk_grpo/scorers/workers/hpsv3_package.py")]
apidoc_modules = [{"path": str(ROOT / "chunk_grpo"), "destination": "docs/reference", "module_first": True}]


def contents(app: Sphinx, page: str, text: list[str]) -> None:
    """Give the first page its list of pages, the tables of docs/README.md, and docs/adr that of its files."""
    index = (ROOT / "docs/README.md").read_text("utf-8").replace("(../README.md)", "(README.md)")
    index += "\n## Reference\n| [](reference/chunk_grpo)"
    for section in re.split(r"^## ", index, flags=re.M)[1:] if page == root_doc else ():
        pages = re.findall(r"^\| \[.*?\]\((.*?)\)", section, re.M)
        start = ["\n\n```{toctree}", f":caption: {section.splitlines()[0]}", ":hidden:"]
        text[0] += "\n".join([*start, *(f"docs/{page}" for page in pages), "```\n"])
    if page == "docs/adr/README":
        text[0] += "\n```{toctree}\n:glob:\n:maxdepth: 1\n0*\n```\n"


def markdown(app: Sphinx, kind: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Write the little Markdown of a docstring as reStructuredText."""
    text = MARKS.sub(lambda m: f":{m[1]}" if m[1] else f"`{m[2]}`" if m[2] else f"\\{m[3]}", "\n".join(lines))
    lines[:] = text.split("\n")


def setup(app: Sphinx) -> None:
    """Register what is above, languages unknown to Pygments, and a file that leads to the first page."""
    for language in ("caddyfile", "csv", "mermaid"):
        app.add_lexer(language, TextLexer)
    app.connect("source-read", contents)
    app.connect("autodoc-process-docstring", markdown, priority=400)
    app.connect("build-finished", lambda app, _: (app.outdir / "index.html").write_text(FIRST, "utf-8"))
