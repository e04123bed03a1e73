"""smgate: event-sourced fleet rollout of a GPU kernel backend."""
