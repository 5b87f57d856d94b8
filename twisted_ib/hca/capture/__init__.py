"""
Capture files of what HCAs send and receive, as packets for Wireshark.

C{capture} is one file and what is known of its connections.  C{trace} observes the paths of a fabric of
records, and C{flow} makes packets of those, which C{framing} frames as the link layer has them.
C{streamtrace} observes a link, which carries packets already, and iWARP's TCP connections.  C{pcapng} writes
the file.
"""
