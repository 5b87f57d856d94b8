"""
Devices, protection domains, memory, completion queues, shared receive queues and address handles of verbs.
"""
