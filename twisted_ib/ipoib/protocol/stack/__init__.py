"""
The pure part of a stack in user space: UDP and ICMP of both versions of IP, and their fragments.
"""
