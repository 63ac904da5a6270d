"""Checks of the kernels: compiled for cards that are not here, inside a running vLLM, and a retriever's needles through the selection."""
