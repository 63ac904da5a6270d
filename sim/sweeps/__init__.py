"""Sweeps: many cells of a few axes, answered in several processes, kept in one zarr store that grows.

design    axes, and the cells of a Cartesian product or a Latin hypercube
work      cells through an executor whose workers may be lost
store     figures by cell on disk: readable at any moment, resumed where it stopped
"""
