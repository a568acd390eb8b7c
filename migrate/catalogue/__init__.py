"""What XLA makes of the names of a library, one file a library; rules and reports take it from here."""
