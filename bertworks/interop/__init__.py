"""Other people's formats: Hugging Face folders and Google's checkpoints, read and written."""
