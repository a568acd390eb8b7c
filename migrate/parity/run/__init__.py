"""What a comparison runs, in its order: prepared, captured, looked at again, beside the layers."""
