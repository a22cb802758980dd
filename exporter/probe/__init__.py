"""Synthetic requests on a timer: what a client of the server would see."""
