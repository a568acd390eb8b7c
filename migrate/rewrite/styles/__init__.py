"""What a rule writes in the style native and in the style portable."""
