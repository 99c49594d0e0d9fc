"""Fine-tuning: a pre-trained model, a task and the one loop of training."""
