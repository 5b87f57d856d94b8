"""
hypothesis for tests beside busy neighbours: it measures no time.

Tests take C{given} and C{settings} from here, so that the profile is loaded before their own settings.
"""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

__all__ = ["given", "settings"]
