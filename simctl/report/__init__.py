"""Self-contained HTML reports of saved results: what was asked, the figures with intervals, and interactive pictures."""
