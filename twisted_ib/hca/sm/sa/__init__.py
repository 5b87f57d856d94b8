"""
Subnet administration (IBTA vol. 1 15): it answers queries about a subnet, and has its multicast groups,
services and subscriptions.

C{agent} is what the subnet manager calls; MADs and the time come in, MADs go out through the manager.
"""
