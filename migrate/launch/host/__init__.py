"""Program that runs on each host of a job: `python -m migrate.launch.host job.json`.

It needs only Python's library, so that it runs before anything is known of the host; fsspec when it copies
files from and to a bucket.
"""
