"""Help for authors' unit tests: `boundary` runs one boundary of a real engine, without a configuration file."""

from interlock.plugins.testing.boundary import Boundary, boundary

__all__ = ["Boundary", "boundary"]
