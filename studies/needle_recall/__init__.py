"""How often sparse decoding still finds the needle, over context, budget, haystack and model."""
