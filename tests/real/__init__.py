"""Tests against real servers, which the environment names; without them they are skipped."""
