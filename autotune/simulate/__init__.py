"""What settings would do to a recorded run: the runtime's own tables, policies, budgets and backends, replayed without
reading or computing anything."""

from autotune.simulate.costs import TokenCosts
from autotune.simulate.curve import LruCurve, lru_curve
from autotune.simulate.disk import DiskTable
from autotune.simulate.replay import PassCost, Simulated, simulate

__all__ = ["DiskTable", "LruCurve", "PassCost", "Simulated", "TokenCosts", "lru_curve", "simulate"]
