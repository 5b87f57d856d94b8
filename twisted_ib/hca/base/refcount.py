"""
Objects that others depend on, and that cannot go before those.
"""

from __future__ import annotations

from twisted_ib.errors import ResourceBusyError


class RefCounted:
    """
    Counts who depends on an object, by kind.

    @cvar kind: what an object of this class is called.
    @ivar users: how many objects of each kind depend on this one, by the kind's name in
        the plural.
    """

    __slots__ = ("users",)

    kind = "object"

    def __init__(self) -> None:
        self.users: dict[str, int] = {}

    def hold(self, kind: str) -> None:
        """
        One object of a kind now depends on this one.
        """
        self.users[kind] = self.users.get(kind, 0) + 1

    def release(self, kind: str) -> None:
        """
        One object of a kind does so no longer.
        """
        count = self.users[kind] - 1
        if count:
            self.users[kind] = count
        else:
            del self.users[kind]

    def checkFree(self) -> None:
        """
        @raise ResourceBusyError: others depend on it; the text names them.
        """
        if self.users:
            held = ", ".join(f"{count} {kind}" for kind, count in self.users.items())
            raise ResourceBusyError(f"the {self.kind} is still used by {held}")
