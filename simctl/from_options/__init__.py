"""Questions from options: with options, file_options, scenario and fleet_file the one place that knows the names of options."""
