"""Predicts what a run needs (`bertworks plan`), by formulas; nothing here imports torch or opens a dataset."""
