"""Learns: posteriors of the rates of the one formula, from measurements."""
