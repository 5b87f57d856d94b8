"""
Subnet administration (IBTA vol. 1 15): it answers queries about a subnet, and has its multicast groups,
services and subscriptions.

C{agent} is what the subnet manager calls; MADs and the time come in, MADs go out through the manager.

Besides:

  - C{events}: subscriptions to events, and their Reports (IBTA vol. 1 13.4.8.3, 13.4.11, 15.2.5.12)
  - C{groups}: multicast groups (IBTA vol. 1 15.2.5.17)
  - C{paths}: paths between ports of a subnet (IBTA vol. 1 15.2.5.16)
  - C{request}: a request to subnet administration, and its refusal
  - C{services}: services that ports register (IBTA vol. 1 15.2.5.14), until they are deleted or their lease
    is over
  - C{store}: the records that a subnet is described by, and which of them a query selects (IBTA vol. 1
    15.4.4, 15.2.5)
"""
