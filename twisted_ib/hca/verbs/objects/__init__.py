"""
Devices, protection domains, memory regions, queues and address handles of verbs.  Begin with C{device}, which
has C{Context}.
"""
