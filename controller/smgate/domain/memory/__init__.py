"""Owns how many bytes a model's weights take on a GPU, packed and after a BF16 fallback. Pure arithmetic."""
