"""`ringtrain compare`: several runs in one table and one picture."""
