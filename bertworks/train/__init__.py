"""Training: one loop for pre-training and fine-tuning, checkpoints that survive a kill, and what it takes to scale."""
