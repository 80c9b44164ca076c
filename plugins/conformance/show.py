"""An observer that shows a failure of the suite: named in the configurations that `interlock check` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from interlock.core import BoundaryRecord, View
from interlock.core.errors import MissingExtra
from interlock.core.yamlfile import read_file
from interlock.plugins.conformance.finding import CheckFailed
from interlock.plugins.conformance.scenario import Scenario


class Show:
    """Repeats one check on the configuration that it stands in, when the run is over, and fails as it fails."""

    class Options(BaseModel):
        """`check`: its name. `file`: the configuration, relative to itself. `faults`: what goes wrong besides.

        `loops` and `exits`: as in `Scenario`.
        """

        model_config = ConfigDict(extra="forbid", frozen=True)

        check: str
        file: Path
        faults: dict[str, Any] = {}
        loops: int = 1
        exits: tuple[int, ...] = ()

    def __init__(self, options: Options) -> None:
        config = read_file(options.file).data
        self.name = options.check
        self.scenario, self.stack, self.executor = Scenario.read(config)
        self._left = 2 * self.scenario.bound + 256
        self._told = False

    def on_start(self, view: View) -> None:
        """The extra must be there when it will be needed."""
        try:
            import hypothesis  # noqa: F401
        except ImportError:
            raise MissingExtra("the conformance suite", "check") from None

    def on_boundary(self, record: BoundaryRecord) -> None:
        """A run without end is stopped."""
        self._left -= 1
        if self._left < 0:
            self._check()

    def on_stop(self) -> None:
        """Repeat the check."""
        self._check()

    def _check(self) -> None:
        if self._told:
            return
        self._told = True
        from interlock.plugins.conformance.repeat import repeat

        finding = repeat(self.stack, self.executor, self.scenario, self.name)
        if finding is not None:
            raise CheckFailed(str(finding))
