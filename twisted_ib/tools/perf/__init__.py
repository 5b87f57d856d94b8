"""
C{ib-perf}: latency and bandwidth between two processes, like perftest.  Begin with C{perf}.

Besides:

  - C{client}: connects, sends the test's parameters, measures
  - C{link}: a connection of C{ib-perf}, at either end
  - C{method}: the interface of an C{ib-perf} subcommand
  - C{parameters}: parameters of an C{ib-perf} test
  - C{rds}: the workload of rds-stress, with its control protocol, messages and option letters
  - C{report}: a table like perftest's, or JSON
  - C{runs}: the work of one C{ib-perf} connection during a measurement, and the latencies
  - C{server}: waits for one client, serves it, and ends with it
"""
