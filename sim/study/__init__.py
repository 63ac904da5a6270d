"""Studies: a workload on a deployment, simulated."""
