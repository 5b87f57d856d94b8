"""
The common part of fabrics: paths to peers, queue pair 1 of a path, and fault injection for tests.
"""
