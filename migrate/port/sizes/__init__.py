"""Another size of the original: which of its settings a port follows, found by building both at it."""
