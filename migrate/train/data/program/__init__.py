"""Modules that written programs carry as they are: the order of examples, batches, and buckets of lengths.

They import NumPy and each other; grain or torch only where batches are loaded.
"""
