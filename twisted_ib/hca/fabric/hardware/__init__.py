"""
An adapter of this host, through the system's libibverbs and librdmacm.

C{provider} loads the libraries; C{adapters} finds an adapter and its IP address; C{hardware} is the fabric.
"""
