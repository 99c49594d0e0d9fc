"""The paper's tables from one command, and its claims about differences with verdicts."""
