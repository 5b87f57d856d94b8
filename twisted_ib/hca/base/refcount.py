"""
Reference counts between objects.
"""

from __future__ import annotations

from typing import ClassVar

from twisted_ib.compilation import mypyc_attr
from twisted_ib.errors import ResourceBusyError


@mypyc_attr(allow_interpreted_subclasses=True)
class RefCounted:
    """
    Counts the users of an object, by kind.

    @cvar kind: the name of this kind of object.
    """

    __slots__ = ("users",)

    kind: ClassVar[str] = "object"

    def __init__(self) -> None:
        #: Kind, in the plural -> number of objects that depend on this one.
        self.users: dict[str, int] = {}

    def hold(self, kind: str) -> None:
        """
        Add a user.
        """
        self.users[kind] = self.users.get(kind, 0) + 1

    def release(self, kind: str) -> None:
        """
        Remove a user.
        """
        count = self.users[kind] - 1
        if count:
            self.users[kind] = count
        else:
            del self.users[kind]

    def checkFree(self) -> None:
        """
        @raise ResourceBusyError: there are users; the text names them.
        """
        if self.users:
            # Linux verbs.c answers EBUSY only; the names tell a program what it forgot to destroy.
            held = ", ".join(f"{count} {kind}" for kind, count in self.users.items())
            raise ResourceBusyError(f"the {self.kind} is still used by {held}")
