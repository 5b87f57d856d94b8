"""
Devices, protection domains, memory regions, queues and address handles of verbs.  Begin with C{device}, which
has C{Context}.

Besides:

  - C{ah}: address handles
  - C{cq}: completion channels and completion queues
  - C{cqex}: the fields of a completion are read one by one
  - C{deviceattr}: the attributes of devices and ports
  - C{mr}: memory regions and windows
  - C{pd}: protection domains
  - C{srq}: shared receive queues (IBTA vol. 1 10.2.9)
  - C{unsupported}: verbs that need special hardware, by pyverbs' names, so that programs can probe for them
"""
