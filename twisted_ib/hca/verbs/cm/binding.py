"""
The device of identifiers.
"""

from __future__ import annotations

from typing import Any, ClassVar

from twisted_ib.hca.device.registry import DEFAULT_DEVICE, addressOf, deviceNames, place
from twisted_ib.hca.host.addresses import isLocalAddress
from twisted_ib.hca.verbs.cm.addrinfo import Address
from twisted_ib.hca.verbs.cm.attendant import attendance
from twisted_ib.hca.verbs.objects.device import Context
from twisted_ib.hca.verbs.objects.pd import PD


class Binding:
    """
    The context and domain of identifiers that bring none; all of a process that use one device share one,
    as with librdmacm.

    @ivar ctx: the context.
    @ivar pd: the protection domain.
    """

    _shared: ClassVar[dict[tuple[str, str | None], Binding]] = {}

    def __init__(self, pd: PD | None = None, name: str = DEFAULT_DEVICE, address: str | None = None) -> None:
        """
        @param pd: a domain that somebody else has; without it a context is opened,
        @param name: of the device with this name,
        @param address: and at this address, if it has one of its own.
        """
        self._users = 0
        self._key = name, address
        if pd is None:
            self.ctx = Context(name=name, address=address)
            self.pd = PD(self.ctx)
        else:
            pd._check()
            assert pd.ctx is not None
            self.ctx, self.pd = pd.ctx, pd
        self._isOurs = pd is None
        self._attendant = attendance.begin()

    @classmethod
    def get(
        cls,
        pd: PD | None,
        name: str | None = None,
        source: Address | None = None,
        destination: Address | None = None,
    ) -> Binding:
        """
        @param pd: the domain that an identifier brings, if it does.
        @param name: of the device that it shall use; None if its addresses decide.
        @param source: where it is bound to, if it is.
        @param destination: where it goes to, if it is known.
        @return: what it uses; it must L{release} that.
        """
        if pd is not None:
            return cls(pd).share()
        if name is None:
            name = deviceFor(source, destination)
        bound, peer = "" if source is None else source.host, "" if destination is None else destination.host
        key = name, place(name, bound, peer)
        binding = cls._shared.get(key)
        if binding is None or binding.device.closed or binding.pd._closer is None:
            # None yet, or it is the parent's of which this process was forked.
            binding = cls._shared[key] = cls(None, *key)
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
            if Binding._shared.get(self._key) is self:
                del Binding._shared[self._key]
            self.ctx.close()


def deviceFor(source: Address | None, destination: Address | None) -> str:
    """
    Choose a device by addresses: of those that were named with an address of their own the one that is
    bound, or, for a peer that is not on this host, the first.

    @param source: where to bind to, if it is known.
    @param destination: where to go to, if it is known.
    @return: its name; the default one if none of these is meant.
    """
    own = {name: address for name in deviceNames() if (address := addressOf(name)) is not None}
    if not own:
        return DEFAULT_DEVICE
    if source is not None and not source.isAny:
        return next((name for name, address in own.items() if address == source.host), DEFAULT_DEVICE)
    if destination is None or destination.isMulticast or isLocalAddress(destination.host):
        return DEFAULT_DEVICE
    version = destination.version
    found = (name for name, address in own.items() if (6 if ":" in address else 4) == version)
    return next(found, DEFAULT_DEVICE)
