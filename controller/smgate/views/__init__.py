"""Read models rebuilt from the log on demand."""
