"""
The device of identifiers.
"""

from __future__ import annotations

from typing import Any

from twisted_ib.hca.fabric.registry import DEFAULT_DEVICE
from twisted_ib.hca.verbs.cmattendant import attendance
from twisted_ib.hca.verbs.device import Context
from twisted_ib.hca.verbs.pd import PD


class Binding:
    """
    The context and domain of identifiers that bring none; all of a process share one, as with
    librdmacm.

    @ivar ctx: the context.
    @ivar pd: the protection domain.
    """

    _shared: Binding | None = None

    def __init__(self, pd: PD | None = None) -> None:
        """
        @param pd: a domain that somebody else has; without it a context is opened.
        """
        self._users = 0
        if pd is None:
            self.ctx = Context(name=DEFAULT_DEVICE)
            self.pd = PD(self.ctx)
        else:
            pd._check()
            assert pd.ctx is not None
            self.ctx, self.pd = pd.ctx, pd
        self._isOurs = pd is None
        self._attendant = attendance.begin()

    @classmethod
    def get(cls, pd: PD | None) -> Binding:
        """
        @param pd: the domain that an identifier brings, if it does.
        @return: what it uses; it must L{release} that.
        """
        binding = cls._shared
        if pd is not None:
            binding = cls(pd)
        elif binding is None or binding.device.closed or binding.pd._closer is None:
            # None yet, or it is the parent's of which this process was forked.
            binding = cls._shared = cls()
        return binding.share()

    @property
    def device(self) -> Any:
        """
        The HCA.
        """
        return self.ctx._device

    def share(self) -> Binding:
        """
        One more uses it.

        @return: it.
        """
        self._users += 1
        return self

    def release(self) -> None:
        """
        One uses it no more; the last one closes what was opened here.
        """
        self._users -= 1
        if self._users:
            return
        attendance.end(self._attendant)
        if self._isOurs:
            if Binding._shared is self:
                Binding._shared = None
            self.ctx.close()
