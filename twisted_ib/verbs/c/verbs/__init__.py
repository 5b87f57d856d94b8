"""
libibverbs.so.1.  Begin with C{table}; the handlers are in the modules named by theme.

Besides:

  - C{address}: address handles
  - C{completion}: completion channels, completion queues and their events
  - C{declarations}: the structures of C{infiniband/verbs.h} for cffi
  - C{device}: devices, contexts and ports
  - C{extended}: requests built one by one
  - C{library}: the start of libibverbs in its process
  - C{memory}: protection domains, memory regions and windows, thread domains
  - C{queues}: queue pairs and shared receive queues
  - C{structures}: their addresses, their fields, and the objects behind them
  - C{text}: texts of codes, and rates
  - C{work}: posting to send and receive queues
"""
