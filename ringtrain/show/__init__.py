"""Tables and figures: columns and rows as data, shown in a terminal, in files and in a page of HTML."""
