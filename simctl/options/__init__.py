"""Options of commands: their types, groups and defaults, and the files that give them."""
