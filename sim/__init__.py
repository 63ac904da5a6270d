"""Predicts: model and GPU specs, the bill of one engine iteration, its price, and the serving simulator."""
