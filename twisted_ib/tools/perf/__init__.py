"""
C{ib-perf}: latency and bandwidth between two processes, like perftest.  Begin with C{perf}.
"""
