"""
Address resolution: from the address of a peer to the path to its HCA.

L{resolution<twisted_ib.hca.device.addressing.resolution>} has what is common.  Each other module is for one
kind of L{Peers<twisted_ib.hca.base.traits.Peers>}: C{processes} of this host, or IP C{addresses}.

Besides:

  - C{subnet}: address resolution where peers are ports of a subnet, named by LIDs
"""
