"""Step times: measured iterations as bills, the model that learns rates from them, and how far to trust it."""
