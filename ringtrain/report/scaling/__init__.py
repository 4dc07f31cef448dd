"""`ringtrain scale`: one training on several numbers of ranks, in one table and one picture."""
