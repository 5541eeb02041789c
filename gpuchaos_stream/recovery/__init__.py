"""Recovery: steady state → TTD, TTM, TTR, objectives, error budgets."""
