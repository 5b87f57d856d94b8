"""
Tests of connections and queues between processes.
"""
