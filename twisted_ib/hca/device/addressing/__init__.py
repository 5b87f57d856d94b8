"""
Address resolution: from the address of a peer to the path to its HCA, by what names the peers of a fabric.

L{resolution<twisted_ib.hca.device.addressing.resolution>} has what is common, each other module one kind of
L{Peers<twisted_ib.hca.base.traits.Peers>}.
"""
