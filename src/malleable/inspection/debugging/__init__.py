"""Programs run equation by equation: stepped through, and searched for what is not finite."""
