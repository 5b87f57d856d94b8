"""
The common part of fabrics: directories (C{neighbours} of a thread, C{addressdirectory}), paths of records,
queue pair 1 of a path, the C{link} of packets, and fault injection for tests.
"""
