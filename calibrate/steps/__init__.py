"""Step-time calibration: measured iterations, the Bayesian model of their rates, and its errors on what it did not see."""
