"""
Linux's IP stack at both ends of our IPoIB: ping, iperf3, ssh and multicast between C{ib-ipoib run}.

They need root, for a device node and mounts of their own: the programs themselves run as a user without
rights.  On Debian::

    apt-get install iperf3 iputils-ping openssh-client openssh-server
    TWISTED_IB_TUN=1 python -m twisted.trial tests.tun
"""
