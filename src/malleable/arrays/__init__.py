"""Arrays that can be written to, and the journal that undoes what was written."""
