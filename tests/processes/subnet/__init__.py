"""
Tests of processes whose devices are at ports of one subnet, which another process hosts.
"""
