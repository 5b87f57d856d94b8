"""
How the HTML reference is built without a network.

pydoctor asks Sphinx inventories for names that are not of this project, and fetches them.  Here a
name is known if Python or the installed Twisted has it (L{docs.links}), and a link to nothing
is still a warning.

The search finds public modules, classes and functions, whose pages have the rest: with all names and
docstrings the indexes are most of the site.

Use: C{python -m pydoctor} in the root of the checkout, see C{[tool.pydoctor]} in pyproject.toml.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from pydoctor.extensions import ExtRegistrar, ModuleVisitorExt
from pydoctor.extensions.zopeinterface import ZopeInterfaceClass
from pydoctor.model import Class, Documentable, DocumentableKind, Function, Module, System
from pydoctor.sphinx import SphinxInventory
from pydoctor.templatewriter import TemplateWriter, search, summary
from pydoctor.templatewriter.pages import Page
from pydoctor.templatewriter.writer import flattenToFile

from docs.links import isInterface, urlOf


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
    Tell pydoctor of L{Interfaces}.
    """
    registrar.register_astbuilder_visitor(Interfaces)
