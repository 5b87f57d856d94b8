"""
What carries a path of RDS: a TCP connection, an RC queue pair, or the process itself.
"""
