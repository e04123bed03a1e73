"""HTTP for nodes and operators."""
