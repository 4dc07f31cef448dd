"""Tables and figures: columns and rows as data, shown in a terminal and in files."""
