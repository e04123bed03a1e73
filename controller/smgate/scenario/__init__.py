"""Scenarios: wire facts and commands with times, run through the real core."""
