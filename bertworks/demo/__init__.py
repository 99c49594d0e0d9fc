"""`bertworks demo`: the life of a BERT in some minutes on a CPU, from raw text to a model that judges sentences."""
