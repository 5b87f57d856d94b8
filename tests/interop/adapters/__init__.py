"""
Devices of the kind C{hardware} in a guest, on the devices that its kernel makes.
"""
