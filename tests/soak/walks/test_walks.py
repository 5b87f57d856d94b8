"""
Random walks of C{tests} over many more seeds.
"""

from __future__ import annotations

from tests.hca.cm import test_hostile
from tests.hca.fabric import test_contract
from tests.hca.fabric.shm import test_ring, test_socketpath
from tests.hca.mad.rmpp import test_sender
from tests.hca.services import test_work
from tests.rds import test_schedules
from tests.rds.protocol import test_streams
from tests.sdp.zerocopy import test_extensions
from tests.verbs.pyverbs.base import test_sequences


class NoiseTests(test_hostile.HostileTests):
    """
    Tables of connections.
    """

    seeds = 100


class LoopbackContractTests(test_contract.LoopbackTests):
    """
    Histories of devices within a process.
    """

    histories = 100


class RingContractTests(test_contract.RingTests):
    """
    Over rings.
    """

    histories = 100


class CarrierContractTests(test_contract.CarrierTests):
    """
    Over sockets.
    """

    histories = 100


class RingTests(test_ring.HostileTests):
    """
    Rubbish in rings.
    """

    peers = 300


class CarrierTests(test_socketpath.HostileTests):
    """
    Rubbish on sockets.
    """

    peers = 300


class ForgerTests(test_sender.TimerTests):
    """
    Forged ACKs of RMPP.
    """

    forgers = 5000


class WorkTests(test_work.WorkTests):
    """
    Work requests of two queue pairs.
    """

    seeds = 1000


class LeavingTests(test_work.LeavingTests):
    """
    Requesters that leave.
    """

    seeds = 5000


class ScheduleTests(test_schedules.ScheduleTests):
    """
    Datagrams of RDS within a process.
    """

    seeds = 10


class ShmScheduleTests(test_schedules.ShmScheduleTests):
    """
    Datagrams of RDS over rings.
    """

    seeds = 10


class StreamTests(test_streams.ScheduleTests):
    """
    Streams over RDS.
    """

    schedules = 40


class ZeroCopyTests(test_extensions.ScheduleTests):
    """
    Zero copy beside all else.
    """

    seeds = 200


class SequenceTests(test_sequences.SequenceTests):
    """
    Calls of verbs in any order.
    """

    examples = 100
