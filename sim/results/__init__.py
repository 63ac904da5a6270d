"""Records of a run, its metrics, intervals and files."""
