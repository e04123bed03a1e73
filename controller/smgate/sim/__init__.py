"""A simulated fleet that speaks the node API over loopback. Imported by nothing."""
