"""
The fabric of adapters of this host.
"""
