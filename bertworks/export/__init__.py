"""Export: a BERT as one ONNX file with its tokenizer and labels, and such a file at work."""
