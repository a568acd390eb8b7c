"""`migrate launch`: a job on a TPU slice as a folder of files. Nothing is started in a cloud.

`pipeline.py` has the order: read the program, check the request against the table of products, write the
launcher's file and the start script, and let the launcher's own parser check them.
"""
