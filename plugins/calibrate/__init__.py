"""Cost profiles: what the steps of a recorded run say about the time of a model call."""

from interlock.plugins.calibrate.profile import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
