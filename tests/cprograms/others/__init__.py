"""
Programs with a lab of their own: a virtual machine that moves, agents of NIXL.
"""
