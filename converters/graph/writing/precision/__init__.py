"""The source of dtypes: fields of each class, float32 parts, biases added before they round."""
