"""
How the HTML reference is built without a network.

pydoctor asks Sphinx inventories for names that are not of this project, and fetches them.  Here a
name is known if Python or the installed Twisted has it (L{docs.links}), and a link to nothing
is still a warning.

It has what a program uses: what packages export, the modules beside them and those that the documentation
names, their base classes, and a page for each folder.  What is inside is read in the source: a link to it
leads to the page of its folder, and its docstrings are checked all the same.

The search finds public modules, classes and functions, whose pages have the rest: with all names and
docstrings the indexes are most of the site.

Use: C{python -m pydoctor} in the root of the checkout, see C{[tool.pydoctor]} in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from pydoctor.epydoc2stan import format_docstring
from pydoctor.extensions import DocumentableMixin, ExtRegistrar, ModuleVisitorExt
from pydoctor.extensions.zopeinterface import ZopeInterfaceClass
from pydoctor.model import Class, Documentable, DocumentableKind, Function, Module, Package, System
from pydoctor.sphinx import SphinxInventory
from pydoctor.templatewriter import TemplateWriter, search, summary
from pydoctor.templatewriter.pages import Page
from pydoctor.templatewriter.writer import flattenToFile

from docs.links import isInterface, urlOf

_ROOT = Path(__file__).resolve().parent.parent
_OWN = "twisted_ib"
#: Modules beside the faces that no program imports.
INSIDE = (f"{_OWN}.compilation", f"{_OWN}.layouts", f"{_OWN}.records", f"{_OWN}.structs")


class Inventory(SphinxInventory):
    """
    Names that are documented elsewhere.
    """

    def getLink(self, name: str) -> str | None:
        """
        @return: the URL of what has this full name, if anything has.
        """
        return super().getLink(name) or urlOf(name)


class Reference(System):
    """
    The project as pydoctor sees it.
    """

    custom_extensions = ["docs.reference"]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """
        Replace the inventory.
        """
        super().__init__(*arguments, **named)
        self.intersphinx = Inventory(logger=self.msg)
        self._bases: frozenset[str] | None = None
        self._shown: dict[Documentable, bool] = {}

    def msg(self, section: str, text: str, *arguments: Any, **named: Any) -> None:
        """
        Say something; not that a link leads to what has no page: L{Shown.url} knows better.
        """
        if not text.startswith("don't link to "):
            super().msg(section, text, *arguments, **named)

    def postProcess(self) -> None:
        """
        All modules are known: so is what each class is derived from.
        """
        super().postProcess()
        self._shown.clear()
        shown = [each for each in self.objectsOfType(Class) if each.isVisible]
        self._bases = frozenset(base.fullName() for each in shown for base in each.mro())
        self._shown.clear()

    def shows(self, ob: Documentable) -> bool:
        """
        @return: Whether something has a place in the reference.
        """
        found = self._shown.get(ob)
        if found is None:
            found = self._shown[ob] = self._isShown(ob)
        return found

    def _isShown(self, ob: Documentable) -> bool:
        if ob.kind is None or ob.isPrivate:
            return False
        if isinstance(ob, Package) or ob.parent is None:
            return True
        if not isinstance(ob, Module):
            isBase = isinstance(ob, Class) and self._bases is not None and ob.fullName() in self._bases
            return isBase or self.shows(ob.parent)
        name = ob.fullName()
        return name in named() or (name.count(".") < 2 and name not in INSIDE)


class Shown(DocumentableMixin):
    """
    A part of the project that has a page, or a place on one.
    """

    @property
    def isVisible(self) -> bool:
        """
        Whether it has.
        """
        return self.system.shows(self)

    @property
    def url(self) -> str:
        """
        Where a link to it leads: what has no place is in a folder that has one.
        """
        ob: Any = self
        while not ob.isVisible:
            ob = ob.parent
        return super().url if ob is self else ob.url


@cache
def named() -> frozenset[str]:
    """
    @return: The modules that the documentation names.
    """
    pages = [_ROOT / "README.md", *(_ROOT / "docs").glob("*.md"), *(_ROOT / "examples").rglob("*.py")]
    search = re.compile(rf"\b{_OWN}(?:\.\w+)+").findall
    return frozenset(name for page in pages for name in search(page.read_text()))


def isFound(documentable: Documentable) -> bool:
    """
    @return: Whether the search finds it.
    """
    if documentable.isPrivate:
        return False
    if isinstance(documentable, Function):
        return isinstance(documentable.parent, Module)
    return isinstance(documentable, Module | Class)


class Writer(TemplateWriter):
    """
    The writer of the pages.
    """

    def writeSummaryPages(self, system: System) -> None:
        """
        Write the indexes, and the search's of what it finds.
        """
        self._write(system, summary.summaryPages(system))
        everything = system.allobjects
        system.allobjects = {name: each for name, each in everything.items() if isFound(each)}
        try:
            self._write(system, search.searchpages)
            search.write_lunr_index(self.build_directory, system=system)
        finally:
            system.allobjects = everything

    def _writeDocsFor(self, ob: Documentable) -> None:
        super()._writeDocsFor(ob)
        if not ob.isVisible and not self.dry_run:
            # Nobody reads it here; a link of it to nothing is an error all the same.
            format_docstring(ob)
            for each in ob.contents.values():
                self._writeDocsFor(each)

    def _write(self, system: System, pages: Iterable[type[Page]]) -> None:
        for each in pages:
            with self.build_directory.joinpath(each.filename).open("wb") as file:
                flattenToFile(file, each(system=system, template_lookup=self.template_lookup))


class Interfaces(ModuleVisitorExt):
    """
    A class that inherits from an interface of Twisted is an interface.
    """

    def depart_ClassDef(self, node: ast.ClassDef) -> None:
        """
        A class is complete.
        """
        found = self.visitor.builder.current.contents.get(node.name)
        if isinstance(found, ZopeInterfaceClass) and not found.isinterface:
            if any(isInterface(base) for base in found.bases):
                found.isinterface = True
                found.kind = DocumentableKind.INTERFACE
                found.implementedby_directly = []


def setup_pydoctor_extension(registrar: ExtRegistrar) -> None:
    """
    Tell pydoctor of L{Interfaces} and L{Shown}.
    """
    registrar.register_mixin(Shown)
    registrar.register_astbuilder_visitor(Interfaces)
