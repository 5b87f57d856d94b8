"""
The subnet management agent (IBTA vol. 1 14.2, 14.3).  C{agent} checks an SMP, C{port} and C{node} get and
set its attribute, of which C{request} is the context; C{traps} tells the subnet manager.
"""

from twisted_ib.subnet.sma.agent import (
    ATTRIBUTES,
    SMA,
    Answer,
    countViolations,
    notice,
    setCapability,
    setSM,
)

__all__ = ["ATTRIBUTES", "SMA", "Answer", "countViolations", "notice", "setCapability", "setSM"]
