"""Programs as rows and lines of text, and two of them side by side."""
