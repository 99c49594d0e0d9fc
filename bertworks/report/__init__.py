"""Reports: pages, charts, curves in a terminal, tables of scores."""
