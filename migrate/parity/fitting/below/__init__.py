"""Parameters outside modules: matched by what the equations of the traced function do with them."""
