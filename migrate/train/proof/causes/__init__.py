"""Causes of a difference between a program and its script: known mistakes, tried until one explains it."""
