"""Measuring campaigns: cells to measure, and the loop of measuring, learning and predicting."""
