"""Models in use: opened, asked, measured, several as one."""
