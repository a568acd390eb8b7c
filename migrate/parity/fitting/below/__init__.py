"""Parameters that no module explains: found by what the equations of the traced function do with them."""
