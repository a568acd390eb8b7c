"""Steps of a comparison, in order: prepare, capture, capture the divergent inputs again, compare
sections.
"""
