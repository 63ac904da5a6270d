"""What is served and on what: model shapes and GPU datasheets."""
