"""The contract between nodes and the controller: strict, versioned, allowlisted fields only.

Every message is a `msgspec` struct that refuses unknown fields. No field is free text above
200 characters, and none can hold an argument vector, an environment or a log line: what a node
says is built from named fields, so a secret has no place to travel in.
"""
