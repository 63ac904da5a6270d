"""Questions that options ask: the one place, with options, scenario and fleet_file, that knows the names of options."""
