"""Clients, routers, replicas: things that take turns with time."""
