"""What is known about every configuration that was tried."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from autotune.judge import Judge
from autotune.knobs import Params
from autotune.space import Space
from autotune.trial import Measured, Outcome
from streaming_core.settings import Settings

__all__ = ["Config", "History"]


@dataclass(slots=True)
class Config:
    """One configuration and everything measured about it in the search."""

    key: str
    params: Params
    settings: Settings
    outcomes: list[Outcome] = field(default_factory=list)
    moments: list[int] = field(default_factory=list)  # of each outcome: how many trials there were before

    @property
    def measured(self) -> list[Measured]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Measured)]

    def score(self, judge: Judge) -> float:
        """Typical score of its trials; failures count as very slow."""
        return statistics.median(judge.judge(outcome).score for outcome in self.outcomes)

    def feasible(self, judge: Judge) -> bool:
        """Whether most of its trials kept every constraint, and none failed, said something else or was given up."""
        verdicts = [judge.judge(outcome) for outcome in self.outcomes]
        if any(name in verdict.broken for verdict in verdicts for name in ("failed", "tokens", "hopeless")):
            return False
        return sum(verdict.feasible for verdict in verdicts) * 2 > len(verdicts)


class History:
    """Configurations by key; the default is one of them and always the first."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self._configs: dict[str, Config] = {}
        self.trials = 0
        self.busy: Collection[Settings] = ()  # what others are measuring now: their outcomes will come
        params = space.to_params(space.base)
        # The default is measured as it is written, "auto" and all, not as the proposal that comes to the same.
        self.default = Config(space.key(params), params, space.base)
        self._configs[self.default.key] = self.default

    def __iter__(self) -> Iterator[Config]:
        return iter(self._configs.values())

    @property
    def candidates(self) -> list[Config]:
        """Whatever was tried beside the default."""
        return [config for config in self if config is not self.default and config.outcomes]

    def config(self, params: Params) -> Config:
        """The configuration of a proposal; the same object once a trial of it was added."""
        key = self._space.key(params)
        return self._configs.get(key) or Config(key, params, self._space.settings(params))

    def tried(self, config: Config) -> bool:
        """Whether a trial of it has ended, or is under way elsewhere."""
        return bool(config.outcomes) or config.settings in self.busy

    def add(self, config: Config, outcome: Outcome) -> None:
        config.outcomes.append(outcome)
        config.moments.append(self.trials)
        self.trials += 1
        self._configs[config.key] = config

    def ranked(self, judge: Judge) -> list[Config]:
        """Feasible configurations, the best first."""
        tried = [config for config in self if config.measured and config.feasible(judge)]
        return sorted(tried, key=lambda config: config.score(judge), reverse=True)

    def ahead_of_default(self, judge: Judge) -> list[Config]:
        """Feasible configurations that looked faster than the default, the best first."""
        ranked = self.ranked(judge)
        return [each for each in ranked if each is not self.default and each.score(judge) > judge.default_score]
