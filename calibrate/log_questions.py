"""What a log teaches, and how far off it was predicted, as questions: fields under the field's names, and `answer()`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.sampling import Settings
from calibrate.served.validation import ValidationReport, ValidationSettings, validate
from sim.errors import UsageError
from sim.shown import Figures, Shown
from sim.study.deployment import Deployment

if TYPE_CHECKING:
    from calibrate.logs.log_rates import LogRates
    from calibrate.logs.requests import ServedLog
    from calibrate.served.runs import ServedRun

LEARN = Settings(draws=600)  # those of `simctl learn`


@dataclass(frozen=True, repr=False)
class Learn(Shown):
    """Rates behind a served log, or several of one server, request by request. `deployment` is what served them; None where a measurement
    of ours says it. `reading` are further arguments of calibrate.logs.read.read_log.
    """

    log: str | Path | Sequence[str | Path]
    deployment: Deployment | None = None
    settings: Settings = LEARN
    from_datasheet: bool = False
    reading: Mapping[str, Any] = field(default_factory=dict)

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        several = [("logs", str(len(self.logs)))] if len(self.logs) > 1 else []
        return _title(self.logs[0], self.deployment), [
            *several,
            ("draws", str(self.settings.draws)),
            ("chains", str(self.settings.chains)),
        ]

    def answer(self, progress: Callable[[str], None] = lambda _: None) -> LogRates:
        """Raises UsageError for a log that cannot be read or learnt from, MissingSamplerError without the samplers."""
        from calibrate.backend import check_samplers
        from calibrate.logs.log_rates import rates_from_log
        from calibrate.logs.requests import joined

        check_samplers()
        found = [served_log(each, self.deployment, self.reading) for each in self.logs]
        return rates_from_log(joined([log for log, _ in found]), found[0][1], self.settings, self.from_datasheet, progress)

    @property
    def logs(self) -> list[str | Path]:
        """The logs, one or several."""
        return [self.log] if isinstance(self.log, str | Path) else list(self.log)


@dataclass(frozen=True, repr=False)
class Validate(Shown):
    """A served run or log replayed and scored; `deployment` and `reading` as of Learn."""

    run: str | Path
    deployment: Deployment | None = None
    settings: ValidationSettings = field(default_factory=ValidationSettings)
    reading: Mapping[str, Any] = field(default_factory=dict)

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        return _title(self.run, self.deployment), [("draws", str(self.settings.draws))]

    def answer(self) -> ValidationReport:
        """Raises UsageError for a run that cannot be read, or of which nothing is left to score."""
        from calibrate.served.time_units import check_times

        run = served_log(self.run, self.deployment, self.reading)[1]
        check_times(run)
        return validate(run, self.settings)


def served_log(path: str | Path, deployment: Deployment | None, reading: Mapping[str, Any]) -> tuple[ServedLog, ServedRun]:
    """(requests, run of its name) of another tool's file, or of a server that was measured by URL. Raises UsageError where it is neither,
    or nothing says what served it.
    """
    from calibrate.logs.read import is_log, measured_log, read_log
    from calibrate.served.runs import read_served

    path = Path(path)
    if not is_log(path):
        run = read_served(path, given=deployment)
        return measured_log(run), run
    if deployment is None:
        raise UsageError(f"{path.name}: a log needs --model and --gpu")
    log = read_log(path, **reading)
    return log, log.served_by(deployment, path.stem)


def _title(path: str | Path, deployment: Deployment | None) -> str:
    return Path(path).name if deployment is None else f"{Path(path).name}, {deployment.shown()[0]}"
