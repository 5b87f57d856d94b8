`TWISTED_IB_CAPTURE=trace.pcapng`, or `capture=` of a device, writes what HCAs send and receive as RoCEv2 packets, for Wireshark and `tshark`.
