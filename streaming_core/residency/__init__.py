"""Which experts are in memory: the slot table that decides, the banks that hold, the plan that fits the budget."""
