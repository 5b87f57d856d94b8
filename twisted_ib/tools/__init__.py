"""
Programs for users: ib-demo, ib-get, ib-devinfo, ib-ss, ib-perf, ib-ping, ib-policy.

Modules:

  - C{compare}: Twisted's transports and others, side by side
  - C{demo}: round trips and file transfers over SDP and over TCP, side by side
  - C{fabric}: an InfiniBand subnet in one process, with a subnet manager or for OpenSM, for devices of other
    processes, and for infiniband-diags
  - C{get}: fetch one URL over C{sdp:}, or any other client endpoint, to a file
  - C{ipoib}: IP over InfiniBand for any program, by a TUN device that this process serves
  - C{machine}: the origin of a measurement's figures
  - C{net}: the nodes and links of an InfiniBand subnet, in C{ibnetdiscover}'s text, which C{ib-fabric} and
    ibsim read
  - C{perf}: latency and bandwidth between two processes, like perftest
  - C{ping}: rping, ucmatose, udaddy, mckey and rds-ping, with their protocols and option letters
  - C{policy}: whether a port or connection uses SDP or TCP by the rules, and whether a rule file is valid
  - C{program}: shared by all commands
  - C{progress}: a progress bar on a terminal, for commands that measure
  - C{run}: an unchanged program, on the loop that takes SDP where it can, or with the C libraries of RDMA
  - C{sa}: what subnet administration knows of a subnet, in C{saquery}'s words
  - C{show}: the devices of running processes, their listeners and connections
"""
