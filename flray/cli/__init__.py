"""The command line: commands, tables and progress display."""
