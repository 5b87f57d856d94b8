"""
librdmacm.so.1.  Begin with C{declarations}; the handlers are in the modules named by theme.

Besides:

  - C{channels}: event channels and events
  - C{connections}: listening, connecting, accepting, rejecting and disconnecting
  - C{early}: imports of a program before its C{main()}
  - C{identifiers}: making and destroying them, their channels and options, and the devices that they may have
  - C{library}: the start of librdmacm in its process
  - C{polling}: waiting for several rsockets
  - C{queues}: the queue pair, completion queues and shared receive queue of an identifier
  - C{resolution}: binding and resolving addresses and routes
  - C{rsockets}: rsockets by their descriptors
  - C{structures}: the identifier of C{struct rdma_cm_id}, and the event channel that it reports to
"""
