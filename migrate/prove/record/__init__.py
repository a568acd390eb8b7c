"""What runs in the user's process: it watches the steps and writes them down."""
