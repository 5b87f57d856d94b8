"""
Tests for L{twisted_ib.hca.device.form}.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from twisted_ib import limits
from twisted_ib.hca.device.form import programName


class ProgramNameTests(SynchronousTestCase):
    """
    Names from command lines.
    """

    def test_names(self) -> None:
        """
        The script; of C{twistd} and C{twist} the application as well; of C{python -m} the package.
        """
        for line, name in (
            ("", ""),
            ("/usr/bin/server --port 3", "server"),
            ("/x/package/__main__.py a", "package"),
            ("/usr/bin/twistd", "twistd"),
            ("/usr/bin/twistd -n web --listen=sdp:80", "twistd web"),
            ("/usr/bin/twistd --nodaemon --pidfile= --reactor=ib web --path .", "twistd web"),
            ("twistd --pidfile /x/y --reactor ib -l - web", "twistd web"),
            ("twistd -noy /srv/app.tac", "twistd app.tac"),
            ("twistd --python=/srv/app.tac", "twistd app.tac"),
            ("twistd --python /srv/app.tac -n", "twistd app.tac"),
            ("twistd -noy", "twistd"),
            ("twistd -r ib -n", "twistd"),
            ("twist --reactor=ib web", "twist web"),
        ):
            self.assertEqual(programName(line.split()), name, line)

    def test_long(self) -> None:
        """
        It is cut.
        """
        self.assertEqual(programName(["x" * 500]), "x" * limits.PROGRAM_BYTES)
