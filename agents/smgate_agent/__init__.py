"""The node side of smgate: launch gate, probe and resident agent."""
