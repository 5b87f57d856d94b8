"""
The device of an identifier.
"""

from __future__ import annotations

from typing import ClassVar

from twisted_ib.hca.device.device import Device
from twisted_ib.hca.device.registry import DEFAULT_DEVICE, addressOf, deviceNames, place
from twisted_ib.hca.host.addresses import isLocalAddress
from twisted_ib.verbs.core.attendant import attendance
from twisted_ib.verbs.pyverbs.cm.addrinfo import Address
from twisted_ib.verbs.pyverbs.objects.device import Context
from twisted_ib.verbs.pyverbs.objects.pd import PD


class Binding:
    """
    A context and protection domain for identifiers that bring none.  All identifiers of a process on one
    device share them, as with librdmacm.
    """

    # rdma-core librdmacm/cma.c, ucma_get_device: identifiers of one device share its context and domain, so
    # that memory registered with one works with another.
    _shared: ClassVar[dict[tuple[str, str | None], Binding]] = {}

    def __init__(self, pd: PD | None = None, name: str = DEFAULT_DEVICE, address: str | None = None) -> None:
        """
        @param pd: a domain of the program; without it a context is opened,
        @param name: on the device of this name,
        @param address: and at this address, for a device that has its own address.
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
        Get a binding for an identifier, which must L{release} it.

        @param pd: the program's own domain, if any.
        @param name: the device's name; None chooses by the addresses.
        @param source: the address to bind to, if known.
        @param destination: the peer's address, if known.
        """
        if pd is not None:
            return cls(pd).share()
        if name is None:
            name = deviceFor(source, destination)
        bound, peer = "" if source is None else source.host, "" if destination is None else destination.host
        key = name, place(name, bound, peer)
        binding = cls._shared.get(key)
        if binding is None or binding.device.closed or binding.pd._closer is None:
            # None yet, or it is closed, or this process was forked and it belongs to the parent.
            binding = cls._shared[key] = cls(None, *key)
        return binding.share()

    @property
    def device(self) -> Device:
        """
        The HCA.
        """
        return self.ctx._device

    def share(self) -> Binding:
        """
        Add a user and return this binding.
        """
        self._users += 1
        return self

    def release(self) -> None:
        """
        Remove a user; the last one closes the context that was opened here.
        """
        self._users -= 1
        if self._users:
            return
        attendance.end(self._attendant)
        if self._isOurs:
            # A newer binding may have replaced this one after a close or fork.
            if Binding._shared.get(self._key) is self:
                del Binding._shared[self._key]
            self.ctx.close()


def deviceFor(source: Address | None, destination: Address | None) -> str:
    """
    Choose a device by addresses: of the named devices with an address of their own, the one bound to
    C{source}, or for a peer on another host the first of the same IP version.

    @return: its name; the default device's if none matches.
    """
    own = {name: address for name in deviceNames() if (address := addressOf(name)) is not None}
    if not own:
        return DEFAULT_DEVICE
    # A bound address decides alone: Linux cma.c, cma_acquire_dev_by_src_ip.
    if source is not None and not source.isAny:
        return next((name for name, address in own.items() if address == source.host), DEFAULT_DEVICE)
    # Peers on this host, and groups, are the default device's: it connects processes through shared memory.
    if destination is None or destination.isMulticast or isLocalAddress(destination.host):
        return DEFAULT_DEVICE
    version = destination.version
    found = (name for name, address in own.items() if (6 if ":" in address else 4) == version)
    return next(found, DEFAULT_DEVICE)
