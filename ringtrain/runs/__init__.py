"""The run folders below a folder: summarised and listed; and the log of one as a table."""
