"""
A subnet that one process hosts, and the sockets by which programs of the host attach to it.

Modules:

  - C{attached}: a port of a subnet, as the device has it that is attached there, and the device, as the
    subnet has it
  - C{descriptors}: descriptors and timers of the host of a subnet, for a reactor or for a thread that has
    none
  - C{hosted}: a subnet in one process
  - C{hostthread}: the host of a subnet in a process that has devices there
  - C{link}: the port of a subnet of the run directory, as a device of this process has it
  - C{manager}: the subnet manager of a hosted subnet
  - C{messages}: messages between the host of a subnet and the processes whose devices are at its ports, on a
    SEQPACKET socket
  - C{ofthread}: the subnet that a thread hosts for the devices that it opens
  - C{place}: the place of a subnet in a run directory
  - C{server}: the devices of other processes at the ports of a subnet that this process hosts
  - C{umadsockets}: the sockets of ibsim's protocol
"""
