"""Tables of kernel latencies: read, predicted, and learnt from."""
