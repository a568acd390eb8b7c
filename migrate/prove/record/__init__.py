"""Recording, which runs in the user's process: it observes the steps and writes them down."""
