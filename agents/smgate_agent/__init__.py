"""The node side of smgate: launch gate, probe and resident agent."""

VERSION = "0.1.0"
"""Version of the distribution; a constant, because reading package metadata costs a start-up."""
