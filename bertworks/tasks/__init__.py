"""What a model is measured on: benchmarks from their own files, your own files, metrics and result files.

Nothing here needs torch or numpy: a task is read, described and scored before a model is loaded.
"""
