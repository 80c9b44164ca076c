"""New plugin projects from templates: what `interlock new` writes."""

from interlock.plugins.scaffold.names import Names
from interlock.plugins.scaffold.project import write_project

__all__ = ["Names", "write_project"]
