"""Deployments: what engines keep in device memory."""
