"""Values that an autocast region makes half precision, and the arrays made from them."""
