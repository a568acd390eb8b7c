"""Values that an autocast region makes half precision, and the arrays that are made of them."""
