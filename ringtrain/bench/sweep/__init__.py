"""`ringtrain bench-allreduce`: sizes, tables, files and plots of a whole sweep."""
