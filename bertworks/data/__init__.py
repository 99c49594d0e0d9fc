"""Text to batches: shards of token ids on disk, and training instances made from them while loading."""
