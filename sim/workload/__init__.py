"""Workloads: traces read from files, arrivals and lengths drawn from distributions, sessions, and the sources that
feed a replica.
"""
