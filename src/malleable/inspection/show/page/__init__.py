"""The page of `show` and `diff`: one file of HTML."""
