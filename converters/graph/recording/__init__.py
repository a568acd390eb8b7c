"""Recording of a torch module's calls: recorded, grouped, shared weights passed down."""
