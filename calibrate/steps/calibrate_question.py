"""The question of a calibration: which rates engine grids of one GPU teach, and how far they are off on what they did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from calibrate.sampling import Settings
from calibrate.steps.calibration import Calibration, calibrate
from calibrate.steps.fit import StepFit
from calibrate.steps.gpu_priors import StartingPriors, starting_priors
from calibrate.steps.grid_cells import Grid
from calibrate.steps.iterations import concatenate
from calibrate.steps.microbenchmarks import packaged_microbenchmarks
from sim.rates.priors import Prior
from sim.specs.gpu import GpuSpec

# Around a normal approximation, trajectories of seven steps turn round once: longer ones cost twice as many gradients, for no more draws
TUNE, TARGET_ACCEPT, DEPTH = 200, 0.8, 3
DRAWS = 1000
# A few cells on top of the hierarchy over GPUs leave shares near their peaks, where steps must be small.
CAREFUL, CAREFUL_DRAWS = 0.98, 2000


@dataclass(frozen=True)
class Calibrate:
    """Engine grids of one GPU, and how to fit them.

    Grids of its own start from the hierarchy over GPUs unless `from_datasheet`; `packaged` ones take the packaged microbenchmarks, too.
    `known` are priors that take the place of these, and where they are from. `draws` per chain; None: DRAWS, twice as many where a gate
    fails with those, and CAREFUL_DRAWS from the hierarchy or from known priors.
    """

    gpu: GpuSpec
    grids: Sequence[Grid]
    packaged: bool = False
    from_datasheet: bool = False
    draws: int | None = None
    chains: int = 4
    folds: int = 5
    seed: int = 0
    known: tuple[Mapping[str, Prior], str] | None = None

    def answer(self) -> tuple[Calibration, str]:
        """(the calibration, what it started from). Raises UsageError for grids that cannot be learnt from."""
        if self.known is None:
            known, start = starting_priors(self.gpu, self.grids[0].precision, datasheet=self.from_datasheet)
        else:
            known, start = dict(self.known[0]), StartingPriors(self.known[1], pooled=True)
        settings = Settings(self.draws or CAREFUL_DRAWS, TUNE, self.chains, self.seed, target_accept=CAREFUL)
        if not start.pooled:
            again = 0 if self.draws else 2 * DRAWS
            settings = replace(settings, draws=self.draws or DRAWS, target_accept=TARGET_ACCEPT, depth=DEPTH, again=again)
        fit = StepFit(concatenate([grid.cells for grid in self.grids]), known, settings)
        return calibrate(fit, self.folds, self.seed, packaged_microbenchmarks(self.gpu) if self.packaged else {}), start.basis
