"""The networks: BERT's encoder and its heads, and the two systems that the paper compares it with."""
