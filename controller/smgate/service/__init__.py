"""Use cases: take facts in, handle commands, lead."""
