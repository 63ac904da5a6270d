"""Rates: priors, posteriors, their provenance, and the rates of a deployment."""
