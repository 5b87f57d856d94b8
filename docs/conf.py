"""
The documentation site: C{python -m sphinx -W --keep-going docs build/docs} in the root of the checkout.

pydoctor's reference is built with it, into the folder C{api}, with the options of C{[tool.pydoctor]} in
pyproject.toml; what it warns of are Sphinx's warnings.  Nothing is fetched.
"""

from __future__ import annotations

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.errors import SphinxError

ROOT = Path(__file__).resolve().parent.parent
# pydoctor imports docs.reference, and reads pyproject.toml of the current directory.
sys.path.insert(0, str(ROOT))

from docs.deadlinks import MOST_OCTETS, deadLinks, octetsOf  # noqa: E402

_setup = ConfigParser()
_setup.read(ROOT / "setup.cfg")

project = "twisted_ib"
author = _setup["metadata"]["author"]
copyright = author
release = version = _setup["metadata"]["version"]

extensions = ["myst_parser", "pydoctor.sphinx_ext.build_apidocs"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["**/__pycache__"]
nitpicky = True
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"{project} {release}"
html_copy_source = False

pydoctor_args = ["--html-output={outdir}/api", "--project-url=../index.html", "--quiet"]
#: Set, it would name the address of the site for links from pages to the reference.
pydoctor_url_path = ""


def addUnreleased(app: Sphinx, page: str, source: list[str]) -> None:
    """
    Append the news of the next release to their page, from the fragments.
    """
    if page != "news":
        return
    command = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", "next"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    # Without the title, which has the release and the date.
    source[0] += made.stdout.partition("\n")[2]


def checkLinks(app: Sphinx, error: Exception | None) -> None:
    """
    Refuse a site, reference included, with links that lead nowhere, or with a reference that is too large.
    """
    if error is None and app.builder.format == "html":
        dead = list(deadLinks(Path(app.outdir)))
        if dead:
            raise SphinxError("dead links:\n" + "\n".join(dead))
        octets = octetsOf(Path(app.outdir) / "api")
        if octets > MOST_OCTETS:
            raise SphinxError(f"the reference has {octets} octets, not at most {MOST_OCTETS}")


def setup(app: Sphinx) -> None:
    """
    Languages of code blocks that Pygments does not know, the news, and the links.
    """
    for language in ("endpoint", "rules"):
        app.add_lexer(language, TextLexer)
    app.connect("source-read", addUnreleased)
    # After pydoctor's extension, which builds the reference then.
    app.connect("build-finished", checkLinks, priority=900)
