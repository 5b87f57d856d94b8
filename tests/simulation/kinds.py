"""
The kinds of faults: what each does to the two hosts of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from tests.hca.fabric import faults

if TYPE_CHECKING:
    from tests.simulation.run import Run

Make = Callable[[Random, "Run"], None]


#: How much a fault does: mostly little, now and then much.
_RATES = (0.01, 0.02, 0.05, 0.1, 0.3)
_MUCH = 0.3
_LOSING = (faults.Loss, faults.AcknowledgementLoss, faults.Corruption, faults.Truncation)


def _both(make: Callable[..., faults.Fault], values: tuple[Any, ...] = _RATES) -> Make:
    """
    The same fault, of other dice, both ways.

    @param make: takes dice, and one of C{values}.
    """

    def install(dice: Random, run: Run) -> None:
        """
        Install them.
        """
        value = dice.choice(values)
        # So many are lost that all repetitions of one may be.
        run.fatal |= make in _LOSING and value >= _MUCH
        for link in run.links:
            link.faults.append(make(Random(dice.getrandbits(32)), value))

    return install


def _stale(dice: Random, run: Run) -> None:
    """
    Packets of an earlier connection of the same queue pairs come again.
    """
    run.earlier = True
    for link in run.links:
        link.faults.append(faults.Replay(Random(dice.getrandbits(32)), 0.3))


def _pausedReader(dice: Random, run: Run) -> None:
    """
    One side has no receives now and then.
    """

    def pause() -> None:
        """
        Stop to post receives; go on after a while.
        """
        worker = run.workers[dice.randrange(2)]
        worker.paused = True
        run.world.later(dice.random() * 2, lambda: resume(worker))

    def resume(worker: Any) -> None:
        worker.paused = False
        worker.refill()

    for n in range(3):
        run.world.later(run.connectSeconds + n * 0.01 + dice.random() * 0.1, pause)


def _vanishing(dice: Random, run: Run) -> None:
    """
    One host is gone for ever, soon after the connection is there.
    """
    run.fatal = True
    when = dice.random() * 0.05
    both = bool(dice.randrange(2))

    def vanish() -> None:
        """
        From now on.
        """
        for link in run.links:
            link.faults.append(faults.LinkDown(run.world.now + when))
        if both:
            run.world.hosts[1].stopped = True

    run.onConnected.append(vanish)


def _delay(dice: Random, run: Run) -> None:
    """
    It takes long, and all comes in another order: in eight times a second there would be no time for
    two attempts.
    """
    run.timeout = 20
    _both(_slow, (0.001, 0.1, 0.75))(dice, run)


def _stopping(dice: Random, run: Run) -> None:
    """
    One host does nothing for 30 s, and goes on.
    """
    host = run.world.hosts[dice.randrange(2)]
    when = dice.random() * 0.05
    run.timeout = 20

    def stop() -> None:
        """
        Stop.
        """
        host.stopped = True
        run.world.note("stopped")
        run.world.later(30.0, resume)

    def resume() -> None:
        host.stopped = False
        run.world.note("goes on")

    run.onConnected.append(lambda: run.world.later(when, stop))


def _refusal(dice: Random, run: Run) -> None:
    """
    There is no room in the socket now and then.
    """
    for link in run.links:
        link.refusal = faults.Refusal(Random(dice.getrandbits(32)), dice.choice((0.05, 0.3, 0.6)))


def _clockJump(dice: Random, run: Run) -> None:
    """
    The clock of one host jumps.
    """
    run.fatal = True  # For who has waited for an hour, the peer is gone.
    host = run.world.hosts[dice.randrange(2)]
    seconds = dice.choice((0.5, 10.0, 3600.0))

    def jump() -> None:
        """
        Jump.
        """
        host.ahead += seconds
        run.world.note(f"jump {seconds}")

    times = [dice.random() * 0.05 for _ in range(dice.randrange(1, 4))]

    def begin() -> None:
        """
        Say when.
        """
        for when in times:
            run.world.later(when, jump)

    run.onConnected.append(begin)


def _tiny(dice: Random, run: Run) -> None:
    """
    A window of one, the smallest path MTU, and sequence numbers that wrap at once.
    """
    run.mtu = 1
    run.psns = 0xFFFFFE, 0xFFFFFE
    run.window = 1
    if dice.randrange(2):
        _both(faults.Loss)(dice, run)


def _burst(dice: Random, most: int) -> faults.Fault:
    """
    Several in a row are lost.
    """
    return faults.Bursts(dice, 0.02, most)


def _slow(dice: Random, seconds: float) -> faults.Fault:
    """
    It takes long, and sometimes twice as long.
    """
    return faults.Delay(dice, seconds, seconds)


def _blackOuts(dice: Random, run: Run) -> None:
    """
    2 s of silence, 5 s of link, again and again.
    """
    begin = dice.random() * 7
    run.timeout = 17
    for link in run.links:
        link.faults.append(faults.Outages(2.0, 5.0, begin))
    run.spread = 3.0


#: By name.
KINDS: dict[str, Make] = {
    "loss": _both(faults.Loss),
    "duplication": _both(faults.Duplication),
    "reorder": _both(faults.Reordering),
    "delay": _delay,
    "corruption": _both(faults.Corruption),
    "truncation": _both(faults.Truncation),
    "bursts": _both(_burst, (2, 4, 6)),
    "blackouts": _blackOuts,
    "ackloss": _both(faults.AcknowledgementLoss, (0.1, 0.2, 0.6)),
    "stale": _stale,
    "pausedreader": _pausedReader,
    "vanishing": _vanishing,
    "stopping": _stopping,
    "refusal": _refusal,
    "clockjump": _clockJump,
    "tiny": _tiny,
}
