"""Batching knees: from measured curves to predictors, their errors, and an audit of where they fail."""
