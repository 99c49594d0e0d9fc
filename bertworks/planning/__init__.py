"""What a run needs before it is started: `bertworks plan`. Formulas alone; nothing here imports torch or a dataset."""
