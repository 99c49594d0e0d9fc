"""Text to token ids: corpora, sentences, normalisation, WordPiece, and vocabularies made from raw text."""
