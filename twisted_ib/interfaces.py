"""
Interfaces of twisted_ib that are made for Twisted.
"""

from __future__ import annotations

from zope.interface import Interface


class IReactorCompletionChannels(Interface):
    """
    A reactor that looks at devices by itself, between its other work, and not
    only when their descriptors are readable.
    """

    def addChannel(channel):  # type: ignore[no-untyped-def]
        """
        Look at the device of L{twisted_ib.hca.channel.DeviceChannel} from now on.
        """

    def removeChannel(channel):  # type: ignore[no-untyped-def]
        """
        Look at it no more.
        """
