"""Serving: models that other programs ask over HTTP, with what they need in operation."""
