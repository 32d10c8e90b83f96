"""Where the parts of arrays are on a mesh, and programs as each device runs them."""
