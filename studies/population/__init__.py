"""GPUs as a population: efficiencies that carry over from measured GPUs to ones never measured."""
