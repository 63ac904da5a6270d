"""Served logs of other tools: read into one form, and learnt from request by request."""
