"""Pure decisions: what a unit should run, when a rollout may widen, and why. Standard library only."""
