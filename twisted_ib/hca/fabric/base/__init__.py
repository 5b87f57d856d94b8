"""
The common part of fabrics: directories (C{neighbours} of a thread, C{addressdirectory}), paths of records,
queue pair 1 of a path, and the C{link} of packets.

Besides:

  - C{fabric}: the base of all fabrics, whatever carries their records
  - C{lastwords}: what a process leaves in shared memory about its streams, to be read when it has died
  - C{management}: queue pairs 0 and 1 of a path
  - C{path}: paths of records to a peer's HCA
  - C{streams}: the base of fabrics of TCP connections, and of an adapter, as a device and its users ask them,
    and the device, as they see it
  - C{subnetdirectory}: the directory of a subnet, as a device asks its fabric, and the device, as that sees
    it
  - C{waker}: the descriptor of a fabric with sockets
"""
