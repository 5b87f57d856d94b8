"""
Capture files of what HCAs send and receive, as RoCEv2 packets that Wireshark reads.

C{trace} looks at the paths of a fabric of records and C{flow} makes packets of those; C{linktrace} looks at a
link, which carries packets already.  C{pcapng} writes the file.
"""
