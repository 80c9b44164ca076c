"""The suite as tests: `pytest --pyargs interlock.plugins.conformance --interlock-policy STACK`.

pytest loads this module wherever Interlock is installed. It adds three options, and does nothing unless this folder
itself is collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from interlock.plugins.conformance.suite import Suite, Verdict

_HERE = Path(__file__).parent
_FRONT = _HERE / "front.py"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of the suite."""
    group = parser.getgroup("interlock", "the conformance suite of Interlock")
    group.addoption("--interlock-policy", metavar="STACK", help="the stack, or executor:NAME, that the suite tests")
    group.addoption("--interlock-executor", metavar="NAME", help="the executor to run the stack on")
    group.addoption("--interlock-max-examples", metavar="N", type=int, default=200, help="scenarios for each check")


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """This folder is collected as files, not imported a second time under another name."""
    return pytest.Dir.from_parent(parent, path=path) if path == _HERE else None


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """One module stands for the suite."""
    return SuiteFile.from_parent(parent, path=file_path) if file_path == _FRONT else None


class SuiteFile(pytest.File):
    """The checks of the stack that the command line names."""

    suite: Suite
    _playing: Iterator[Verdict]
    _told: dict[str, Verdict]

    def collect(self) -> Iterator[pytest.Item]:
        """One item per check."""
        from interlock.core import InterlockError
        from interlock.plugins.conformance.front import suite_of

        options = self.config.option
        if options.interlock_policy is None:
            raise self.CollectError("the conformance suite needs --interlock-policy STACK")
        try:
            self.suite = suite_of(
                options.interlock_policy, options.interlock_executor, options.interlock_max_examples,
                self.config.invocation_params.dir,
            )  # fmt: skip
        except InterlockError as error:
            raise self.CollectError(str(error)) from None
        self._playing, self._told = self.suite.verdicts(), {}
        for check in self.suite.checks:
            yield CheckItem.from_parent(self, name=check.name)

    def verdict(self, name: str) -> Verdict:
        """The verdict of a check; checks that share scenarios are played together."""
        while name not in self._told:
            verdict = next(self._playing)
            self._told[verdict.check.name] = verdict
        return self._told[name]


class CheckItem(pytest.Item):
    """One check."""

    def runtest(self) -> None:
        """Pass, skip with the reason, or fail with a paragraph."""
        from interlock.plugins.conformance import report
        from interlock.plugins.conformance.finding import CheckFailed

        file = self.getparent(SuiteFile)
        assert file is not None
        verdict = file.verdict(self.name)
        report.write_scenario(verdict, file.suite.subject, report.FOLDER)
        if verdict.status == "expected":
            pytest.xfail(verdict.reason)
        if verdict.status in ("skip", "lost"):
            pytest.skip(report.paragraph(verdict) or verdict.reason)
        if verdict.status == "fail":
            raise CheckFailed(report.paragraph(verdict))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        """The paragraph alone."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """The name of the check."""
        return self.path, None, self.name
