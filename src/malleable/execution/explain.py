def explain(f): pass
