"""
Messages and RDMA for Twisted: what C{ib:} endpoints give.
"""
