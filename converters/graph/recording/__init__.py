"""From a torch module to its calls: recorded, grouped, what is shared handed down."""
