"""The run folders below a folder: found, summarised, filtered, listed; and the log of one as a table."""
