"""Digital twin of a running server: its metrics, a level learnt from them, and a forecast of when its SLO breaks."""
