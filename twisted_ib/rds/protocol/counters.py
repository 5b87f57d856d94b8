"""
The counters of RDS, under the kernel's names.

Source: Linux 6.1 C{net/rds/stats.c} (C{rds-info -c} shows them), of which those are kept that mean
something here.
"""

from __future__ import annotations

#: The kernel's names, in the order of C{struct rds_statistics} in Linux rds.h.
KERNEL_COUNTERS = (
    "conn_reset",
    "recv_drop_bad_checksum",
    "recv_drop_old_seq",
    "recv_drop_no_sock",
    "recv_drop_dead_sock",
    "recv_delivered",
    "recv_queued",
    "recv_ack_required",
    "recv_rdma_bytes",
    "recv_ping",
    "send_queue_empty",
    "send_queue_full",
    "send_ack_required",
    "send_queued",
    "send_rdma",
    "send_rdma_bytes",
    "send_pong",
    "cong_update_queued",
    "cong_update_received",
    "cong_send_error",
    "cong_send_blocked",
)

#: Our own: malformed input from peers, requests beyond a limit, and our own drops.
OWN_COUNTERS = (
    "recv_bad_length",
    "recv_bad_extension",
    "recv_bad_map",
    "recv_bad_port",
    "recv_bad_ack",
    "recv_bad_frame",
    "recv_bad_request",
    "recv_drop_no_room",
    "send_drop_pong",
    "send_drop_closed",
    "send_retransmitted",
    "peer_restarted",
    "recv_handed_on",
    "send_handed_on",
    "recv_handed_late",
)

#: Of streams (L{twisted_ib.rds.protocol.streams}): datagrams that are no frames or match no session, and
#: streams that were refused or lost.
STREAM_COUNTERS = (
    "stream_plain_datagrams",
    "stream_bad_frames",
    "stream_bad_version",
    "stream_unknown_session",
    "stream_too_many",
    "stream_answers_dropped",
    "stream_overheld",
    "stream_unreachable",
    "stream_stalled",
)


def newCounters() -> dict[str, int]:
    """
    @return: all counters at zero.
    """
    return dict.fromkeys(KERNEL_COUNTERS + OWN_COUNTERS + STREAM_COUNTERS, 0)
