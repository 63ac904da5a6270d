"""The measuring suites: each turns a machine into one labelled dataset."""
