"""
C{libibumad.so.3}: management datagrams of programs, such as OpenSM and infiniband-diags, at a device's port.

Modules:

  - C{buffers}: the buffers of programs
  - C{declarations}: the structures of C{infiniband/umad.h} for cffi, and the functions of libibumad
  - C{devices}: channel adapters and their ports, as sysfs shows those of a kernel
  - C{library}: the start of libibumad in its process
  - C{names}: names of classes, methods, attributes and states of MADs (C{umad_str.h})
  - C{ports}: open ports, their agents, and what is sent and received there
"""
