"""What a person looks at: pages, charts, curves in a terminal, tables of scores."""
