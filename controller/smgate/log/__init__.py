"""The append-only event log in SQL: order, idempotency, fencing, hash chain."""
