"""
OpenSM as the master of a subnet of processes.
"""
