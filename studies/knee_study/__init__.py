"""A published study of batch knees, recomputed from its own tables: Spearman, factors and signs of its predictors beside the formula's."""
