"""
Devices, protection domains, memory regions, queues and address handles of verbs.
"""
