"""`bertworks demo`: the life of a BERT in a few minutes on a CPU, from raw text to a sentence classifier."""
