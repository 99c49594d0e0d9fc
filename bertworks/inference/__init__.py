"""Inference: opening models, predicting with them, measuring them, and ensembles."""
