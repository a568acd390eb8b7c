"""What XLA did while a script ran: which graphs it compiled and executed, when, and which line asked."""
