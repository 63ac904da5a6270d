"""Needle recall of sparse decoding, over context, budget, haystack and model."""
