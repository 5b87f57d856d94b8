"""
How the HTML reference is built without a network.

pydoctor asks Sphinx inventories for names that are not of this project, and fetches them.  Here a
name is known if Python or the installed Twisted has it (L{docs.links}), and a link to nothing
is still a warning.

Use: C{python -m pydoctor} in the root of the checkout, see C{[tool.pydoctor]} in pyproject.toml.
"""

from __future__ import annotations

import ast
from typing import Any

from pydoctor.extensions import ExtRegistrar, ModuleVisitorExt
from pydoctor.extensions.zopeinterface import ZopeInterfaceClass
from pydoctor.model import DocumentableKind, System
from pydoctor.sphinx import SphinxInventory

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
