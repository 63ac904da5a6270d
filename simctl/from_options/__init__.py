"""Questions from options: with `options` and `scenario_files` the one place that knows the names of options."""
